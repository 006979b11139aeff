#!/usr/bin/env node
// The npm compiler (pure JavaScript) behind the command line of a native solc, so that py-solc-x can drive it.
// In: `--version`, or `--standard-json` with the JSON on stdin. Out: what a native solc prints, and nothing else.
// `--serve`: each line on stdin is such a JSON, answered by a line; a compiler that is warm takes two thirds of the time.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { join, normalize } from "node:path";
import { createInterface } from "node:readline";

const require = createRequire(import.meta.url);
const args = process.argv.slice(2);
const root = join(import.meta.dirname ?? new URL(".", import.meta.url).pathname, "..");

// soljson prints an SMT notice on stdout while it loads: only our own output may reach it.
const write = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr);
const solc = require("solc");
process.stdout.write = write;

function findImport(path) {
  const wanted = normalize(path);
  if (wanted.startsWith("..")) return { error: `import outside the repository: ${path}` };
  for (const folder of ["", "node_modules"]) {
    try {
      return { contents: readFileSync(join(root, folder, wanted), "utf8") };
    } catch {
      continue;
    }
  }
  return { error: `no such file: ${path}` };
}

if (args.includes("--version")) {
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${solc.version()}`);
} else if (args.includes("--standard-json")) {
  const output = solc.compile(readFileSync(0, "utf8"), { import: findImport });
  process.stdout.write(output + "\n");
} else if (args.includes("--serve")) {
  for await (const line of createInterface({ input: process.stdin })) {
    write(solc.compile(line, { import: findImport }) + "\n");
  }
} else {
  console.error(`expected --version, --standard-json or --serve, got ${JSON.stringify(args)}`);
  process.exit(1);
}
