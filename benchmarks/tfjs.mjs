// tfjs-backend-wasm (XNNPACK) behind a line protocol: one JSON request per line in, one JSON answer per line out.
//   {"operator": "MatMul", "threads": 1, "inputs": [{"dims","file"}]} -> {"milliseconds": ...}
//   {"run": 1}                                                        -> {"milliseconds": ...}
//   {"outputs": "folder"}                                             -> {"outputs": [{"type","dims","file"}]}
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { serve } from './serve.mjs';

const require = createRequire(join(process.argv[2], 'package.json'));
const packageFolder = dirname(require.resolve('@tensorflow/tfjs-backend-wasm/package.json'));

// The package leaves its threads off in Node, because its workers are made from blob URLs, which Node does not
// take. Here they are made from the same texts as files have them. It also takes at most half as many threads
// as there are processors, so it is told of more.
function enableThreads(tf, backend, threads) {
  const name = join(packageFolder, 'wasm-out', 'tfjs-backend-wasm-threaded-simd.js');
  const text = require(name.replace('.js', '.worker.js')).wasmWorkerContents.replace(/\n/g, '\\n');
  const names = JSON.stringify({ __filename: name, __dirname: dirname(name) });
  const workerThreads = require('node:worker_threads');
  workerThreads.Worker = class extends workerThreads.Worker {
    constructor() {
      super(`Object.assign(globalThis, ${names}); var __filename = globalThis.__filename; ${text}`, { eval: true });
    }
    postMessage(message, ...others) {
      super.postMessage(message.cmd === 'load' ? { ...message, urlOrBlob: name } : message, ...others);
    }
  };
  const os = require('node:os');
  const processors = os.cpus();
  os.cpus = () => Array(2 * threads).fill(processors[0]);
  tf.env().set('WASM_HAS_MULTITHREAD_SUPPORT', true);
  backend.setThreadsCount(threads);
}

let compute, result;

async function prepare({ operator, threads, inputs }) {
  const begin = performance.now();
  const tf = require('@tensorflow/tfjs-core');
  const backend = require('@tensorflow/tfjs-backend-wasm');
  backend.setWasmPaths(join(packageFolder, 'dist') + '/');
  if (threads > 1) enableThreads(tf, backend, threads);
  await tf.setBackend('wasm');
  if (threads > 1 && backend.getThreadsCount() !== threads) throw Error(`${backend.getThreadsCount()} threads`);
  const [x, weight] = inputs.map(({ dims, file }) => {
    const bytes = readFileSync(file);
    return tf.tensor(new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)), dims);
  });
  const operators = { MatMul: () => tf.matMul(x, weight), Conv: () => tf.conv2d(x, weight, 1, 'same') };
  compute = operators[operator];
  return { milliseconds: performance.now() - begin };
}

async function answer(request) {
  if (request.operator) return prepare(request);
  if (request.run) {
    const begin = performance.now();
    for (let i = 0; i < request.run; ++i) {
      result?.tensor.dispose();
      const tensor = compute();
      result = { tensor, data: tensor.dataSync() };
    }
    return { milliseconds: (performance.now() - begin) / request.run };
  }
  const file = join(request.outputs, 'output.bin');
  writeFileSync(file, new Uint8Array(result.data.buffer, result.data.byteOffset, result.data.byteLength));
  return { outputs: [{ type: 'float32', dims: result.tensor.shape, file }] };
}

await serve(answer);
