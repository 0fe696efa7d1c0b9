// The same explanation, asked from a shell, Python and JavaScript.

import * as api from "./api";
import type { Look } from "./colours";
import { isBright, parametersOf, type Choice } from "./view";

export const languages = ["curl", "Python", "JavaScript"] as const;
export type Language = (typeof languages)[number];

/** The parameters of the picture on the screen. */
function drawn(choice: Choice, look: Look): Record<string, string> {
  const output = { overlay: "overlay", heat: "heatmap", contour: "contour", photo: "overlay" }[look.view];
  const all = { ...parametersOf({ ...choice, mask: undefined }), output,
    opacity: look.view === "overlay" ? String(look.opacity) : look.view === "photo" ? "0" : undefined,
    threshold: look.threshold ? String(look.threshold) : undefined,
    colormap: look.colormap || undefined,
    normalize: isBright(choice.method) ? "percentile" : undefined };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as
    Record<string, string>;
}

const shell = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
const python = (text: string) => JSON.stringify(text);

export function code(language: Language, choice: Choice, look: Look, name: string, type: string): string {
  const parameters = drawn(choice, look);
  const address = new URL(api.pathOf("explain", choice.model, parameters), location.href.split("#")[0]).href;
  const origin = new URL(".", location.href.split("#")[0]).href.replace(/\/$/, "");
  if (language === "curl") {
    return `curl --data-binary ${shell(`@${name}`)} -H ${shell(`Content-Type: ${type}`)} ` +
      `-H 'Accept: image/png' \\\n  -o overlay.png ${shell(address)}`;
  }
  if (language === "JavaScript") {
    return `const response = await fetch(${JSON.stringify(address)}, {\n  method: "POST",\n` +
      `  headers: { "Content-Type": ${JSON.stringify(type)}, Accept: "image/png" },\n` +
      "  body: photo,  // a File or Blob\n});\nconst picture = await response.blob();";
  }
  const options = Object.entries(parameters).map(([key, value]) => {
    const number = ["opacity", "threshold"].includes(key) || (key === "target" && /^\d+$/.test(value));
    const object = key === "target" && value.startsWith("{");
    const literal = object ? value.replaceAll("true", "True") : key === "signed" ? "True"
      : number ? value : python(value);
    return `        ${key}=${literal},\n`;
  }).join("");
  return "from service.client import Client\n\n" +
    `with Client(${python(origin)}, model=${python(choice.model)}) as client:\n` +
    `    explanation = client.explain(\n        ${python(name)},\n${options}    )\n` +
    '    open("overlay.png", "wb").write(explanation.overlay)';
}
