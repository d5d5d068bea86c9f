// node node_driver.js main.js value.json: run a file as a notebook runs a cell.
// The value of the last statement goes to the second file, as JSON or as text; a promise is waited for.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const { inspect } = require("node:util");
const vm = require("node:vm");

const [file, answer] = process.argv.slice(2);
process.argv.splice(1, 3, file);

async function main() {
  globalThis.require = createRequire(file);
  globalThis.module = { exports: {} };
  globalThis.exports = globalThis.module.exports;
  globalThis.__filename = file;
  const value = await vm.runInThisContext(fs.readFileSync(file, "utf8"), { filename: file });
  if (value === undefined || value === null) return;
  let text;
  try {
    text = JSON.stringify(value);
  } catch {
    text = undefined;
  }
  fs.writeFileSync(answer, text ?? JSON.stringify(inspect(value)));
}

main().catch((error) => {
  console.error(error instanceof Error ? error.stack : `Uncaught ${inspect(error)}`);
  process.exitCode = 1;
});
