// What one takes along: a link, files, and the same explanation in other languages.

import { useSignal } from "@preact/signals";
import { code, languages, type Language } from "./code";
import { captionOf } from "./legend";
import { npy } from "./smallmap";
import { answer, answers, choice, examples, look, phrase, photo, query, shown, span } from "./view";
import { words } from "./words";

/** Gives a file, or the address of one, to the browser to be kept. */
export function save(file: Blob | string, name: string): void {
  const link = document.createElement("a");
  link.href = typeof file === "string" ? file : URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const stem = () => `${(photo.value?.name ?? "photo").replace(/\.[^.]*$/, "")}-${shown.value?.explanation.method}`;

async function savePng(): Promise<void> {
  const canvas = document.querySelector<HTMLCanvasElement>("#picture");
  const blob = await new Promise<Blob | null>((resolve) => { canvas?.toBlob(resolve, "image/png"); });
  if (blob) save(blob, `${stem()}.png`);
}

const escaped = (text: string) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A picture with its words: photo and map, the class, the method and the layer. */
function saveSvg(): void {
  const canvas = document.querySelector<HTMLCanvasElement>("#picture"), made = shown.value;
  if (!canvas || !made) return;
  const { width, height } = canvas, line = Math.max(width / 30, 12);
  const { target, method, layer, warnings } = made.explanation;
  const sure = target.probability === undefined ? "" : `, ${target.probability.toFixed(3)}`;
  const lines = [`${captionOf(made)}${sure}`, layer ? `${method} at ${layer}` : method, ...warnings];
  const texts = lines.map((text, n) =>
    `<text x="0" y="${height + (n + 1.2) * line}" font-size="${line * 0.75}">${escaped(text)}</text>`);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ` +
    `${height + (lines.length + 0.8) * line}" font-family="sans-serif"><image width="${width}" ` +
    `height="${height}" href="${canvas.toDataURL("image/png")}"/>${texts.join("")}</svg>`;
  save(new Blob([svg], { type: "image/svg+xml" }), `${stem()}.svg`);
}

/** Whether the word that is chosen is not the first of its text, the one that the service finds by it. */
function isRepeated(word: string): boolean {
  const all = (answer.value?.answer.words ?? []).map(({ text }) => text.toLowerCase());
  const wanted = word.toLowerCase().split(/\s+/);
  return all.findIndex((_, n) => wanted.every((text, m) => all[n + m] === text)) !== span.value?.[0];
}

export function TakeAlong() {
  const language = useSignal<Language>("curl"), told = useSignal("");
  const made = shown.value, of = photo.value;
  if (!made || !of) return null;
  const word = phrase.value?.word.text;
  const text = code(language.value, choice.value, look.value, of.name, of.blob.type || "image/jpeg",
    answers.value ? { ...query.value, word } : undefined);
  const copy = (what: string) => navigator.clipboard?.writeText(what)
    .then(() => { told.value = words.copied; setTimeout(() => { told.value = ""; }, 2000); });
  return <section class="card" aria-labelledby="take-heading">
    <h2 id="take-heading">{words.take}</h2>
    <p class="row">
      <button type="button" id="link" aria-describedby="link-note" onClick={() => void copy(location.href)}>{words.link}</button>
      <button type="button" id="png" onClick={() => void savePng()}>{words.png}</button>
      <button type="button" id="svg" onClick={saveSvg}>{words.svg}</button>
      <button type="button" id="npy" onClick={() =>
        save(npy(made.values, made.explanation.heatmap.shape), `${stem()}.npy`)}>{words.npy}</button>
      <span role="status" class="soft">{told}</span>
    </p>
    <p class="soft" id="link-note">{examples.has(of.digest) ? words.linkToExample : words.linkNote}</p>
    <h3>{words.same}</h3>
    <div class="row" role="group" aria-label={words.same}>
      {languages.map((each) => <button key={each} type="button" aria-pressed={language.value === each}
        onClick={() => { language.value = each; }}>{each}</button>)}
      <button type="button" class="quiet" onClick={() => void copy(text)}>{words.copy}</button>
    </div>
    {word && isRepeated(word) && <p class="soft">{words.firstOf(word)}</p>}
    {choice.value.mask && <p class="soft">{words.maskNote}</p>}
    {look.value.threshold > 0 && look.value.view !== "contour" && <p class="soft">{words.thresholdNote}</p>}
    <pre id="code" tabIndex={0}>{text}</pre>
  </section>;
}
