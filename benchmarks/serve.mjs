// The line protocol of contenders in Node: one JSON request per line in, one JSON answer per line out.
import { createInterface } from 'node:readline';

export async function serve(answer) {
  for await (const line of createInterface({ input: process.stdin })) {
    let reply;
    try {
      reply = await answer(JSON.parse(line));
    } catch (error) {
      reply = { error: String(error) };
    }
    process.stdout.write(JSON.stringify(reply) + '\n');
  }
  process.exit(0);
}
