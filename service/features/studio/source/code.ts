// The same explanation, asked from a shell, Python and JavaScript.

import * as api from "./api";
import { SERVICE, USUAL_SIGNED, colormapOf, type Look } from "./colours";
import { isBright, parametersOf, questionOf, type Choice, type Query } from "./view";

export const languages = ["curl", "Python", "JavaScript"] as const;
export type Language = (typeof languages)[number];

/** A question, and the word of its answer whose map is on the screen. */
type Asked = Query & { word?: string };

/** The parameters with which the service draws as the page does. */
export function drawn(choice: Choice, look: Look, asked?: Asked): Record<string, string> {
  const output = { overlay: "overlay", heat: "heatmap", contour: "contour", photo: "overlay" }[look.view];
  const signed = choice.signed && !asked, colormap = colormapOf(look, signed);
  const coloured = look.view === "overlay" || look.view === "heat";
  const all = { ...asked ? { ...questionOf(asked), word: asked.word } : parametersOf({ ...choice, mask: undefined }), output,
    opacity: look.view === "overlay" ? String(look.opacity) : look.view === "photo" ? "0" : undefined,
    threshold: look.threshold ? String(look.threshold) : undefined,
    colormap: coloured && colormap !== (signed ? USUAL_SIGNED : SERVICE) ? colormap : undefined,
    normalize: isBright(choice.method) ? "percentile" : undefined };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as
    Record<string, string>;
}

const shell = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;
const python = (text: string) => JSON.stringify(text);
/** What JSON writes as Python writes it. */
const literal = (value: unknown): string => value === true ? "True" : value === false ? "False"
  : Array.isArray(value) ? `[${value.map(literal).join(", ")}]`
  : typeof value === "object" && value
    ? `{${Object.entries(value).map(([key, each]) => `${python(key)}: ${literal(each)}`).join(", ")}}`
  : JSON.stringify(value);

export function code(language: Language, choice: Choice, look: Look, name: string, type: string, asked?: Asked): string {
  const parameters = drawn(choice, look, asked);
  const address = new URL(api.pathOf(asked ? "answer" : "explain", choice.model, parameters), location.href.split("#")[0]).href;
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
    const number = ["opacity", "threshold"].includes(key) ? value !== "heat" : key === "target" && /^\d+$/.test(value);
    const object = key === "target" && value.startsWith("{");
    const written = object ? literal(JSON.parse(value)) : key === "signed" ? "True" : number ? value : python(value);
    return `        ${key}=${written},\n`;
  }).join("");
  const start = "from service.client import Client\n\n" +
    `with Client(${python(origin)}, model=${python(choice.model)}) as client:\n`;
  if (asked) {
    return `from base64 import b64decode\n\n${start}` +
      `    answer = client.answer(\n        ${python(name)},\n${options}    )\n` +
      '    open("overlay.png", "wb").write(b64decode(answer.words[0].overlay.data))';
  }
  return start +
    `    explanation = client.explain(\n        ${python(name)},\n${options}    )\n` +
    '    open("overlay.png", "wb").write(explanation.overlay)';
}
