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
const ort = require('onnxruntime-web/wasm');

const views = {
  float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, int8: Int8Array, bool: Uint8Array,
};
let session, feeds, results;

async function answer(request) {
  if (request.load) {
    ort.env.wasm.numThreads = request.threads;
    const begin = performance.now();
    // Threads that spin on after a run would take the time of whoever is measured next.
    const options = { executionProviders: ['wasm'], extra: { session: { force_spinning_stop: '1' } } };
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
