// onnxruntime-web behind a line protocol: one JSON request per line in, one JSON answer per line out.
//   {"load": "m.onnx", "threads": 1}            -> {"milliseconds": ...}
//   {"feed": [{"name","type","dims","file"}]}   -> {"ok": true}
//   {"memory": "now"}                           -> {"resident": bytes, "peak": bytes}
//   {"run": 1}                                  -> {"milliseconds": ...}
//   {"outputs": "folder"}                       -> {"outputs": [{"name","type","dims","file"}]}
import { readFileSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { serve } from './serve.mjs';

const require = createRequire(join(process.argv[2], 'package.json'));
const provider = process.argv[3] ?? 'wasm';
if (provider === 'webgpu') await provideWebGpu();
const ort = provider === 'wasm' ? require('onnxruntime-web/wasm') : await importModule('onnxruntime-web', 'ort.webgpu.bundle.min.mjs');

const views = {
  float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array, bool: Uint8Array,
};
let session, feeds, results;

function importModule(name, file) {
  return import(pathToFileURL(join(process.argv[2], 'node_modules', name, 'dist', file)));
}

// Node has no WebGPU; Dawn's package has. It refuses bytes of shared memory, which onnxruntime-web writes from.
async function provideWebGpu() {
  const { create, globals } = await import(pathToFileURL(join(process.argv[2], 'node_modules', 'webgpu', 'index.js')));
  Object.assign(globalThis, globals);
  const value = { gpu: create([]), userAgent: 'node', hardwareConcurrency: 1 };
  Object.defineProperty(globalThis, 'navigator', { value, configurable: true });
  const write = globalThis.GPUQueue.prototype.writeBuffer;
  globalThis.GPUQueue.prototype.writeBuffer = function (buffer, offset, data, begin = 0, size = undefined) {
    const bytes = new Uint8Array(data.buffer ?? data, data.byteOffset ?? 0, data.byteLength).slice();
    return write.call(this, buffer, offset, bytes, begin, size ?? bytes.byteLength - begin);
  };
}

async function answer(request) {
  if (request.load) {
    ort.env.wasm.numThreads = request.threads;
    const begin = performance.now();
    // Threads that spin on after a run would take the time of whoever is measured next.
    const options = { executionProviders: [provider], extra: { session: { force_spinning_stop: '1' } } };
    session = await ort.InferenceSession.create(readFileSync(request.load), options);
    return { milliseconds: performance.now() - begin };
  }
  if (request.feed) {
    feeds = {};
    for (const { name, type, dims, file } of request.feed) {
      const bytes = readFileSync(file);
      const data = new views[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
      feeds[name] = new ort.Tensor(type, data, dims);
    }
    return { ok: true };
  }
  if (request.memory) {
    const kibibytes = (name) => Number(readFileSync('/proc/self/status', 'utf8').match(name + ':\\s+(\\d+)')[1]);
    return { resident: kibibytes('VmRSS') * 1024, peak: kibibytes('VmHWM') * 1024 };
  }
  if (request.run) {
    const begin = performance.now();
    for (let i = 0; i < request.run; ++i) results = await session.run(feeds);
    return { milliseconds: (performance.now() - begin) / request.run };
  }
  const outputs = Object.entries(results).map(([name, tensor], index) => {
    const file = join(request.outputs, `output${index}.bin`);
    writeFileSync(file, new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength));
    return { name, type: tensor.type, dims: tensor.dims, file };
  });
  return { outputs };
}

await serve(answer);
