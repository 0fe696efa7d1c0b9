// Bundles the page: source/ → built/. What is built is checked in, so that nobody needs Node to run
// the service; a test checks that it is current.
import { build } from "esbuild";
import { cp, mkdir, rm } from "node:fs/promises";

const output = process.argv[2] ?? "built";
await rm(output, { recursive: true, force: true });
await mkdir(output, { recursive: true });
await build({
  entryPoints: { studio: "source/main.tsx", style: "source/style.css" },
  outdir: output,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
});
await cp("source/index.html", `${output}/index.html`);
await cp("source/samples", output, { recursive: true });
