// The state of the page: what is asked, how it is drawn, and what came back. All of it but the
// photo and a painted mask is in the address, so that a link brings the view back.

import { batch, computed, effect, signal } from "@preact/signals";
import * as api from "./api";
import { colormaps, type Look } from "./colours";
import * as photos from "./photos";
import type { Photo, Picture } from "./photos";
import { numbers } from "./smallmap";
import { words } from "./words";

export interface Choice {
  model: string; method: string; layer: string; fit: string;
  target?: number; minus?: number; against: boolean; signed: boolean;
  /** Words of one's own in place of a class, and other words with which they are contrasted. */
  text?: string; minusText?: string;
  /** A channel of a layer in place of a class: its number, "@" and the layer's name. */
  unit?: string;
  /** A box on the photo: its left, top, right and bottom edge, with commas between them. */
  box?: string;
  /** A mask that was painted on the photo, as a PNG in base64. It is not in the address. */
  mask?: string;
}
export interface Shown {
  explanation: api.Explanation; prediction: api.Prediction; values: Float32Array;
  wall: number; phases: string; cached: boolean; path: string;
}
/** What is asked of a model that answers questions; nothing while `question` is undefined. */
export interface Query { question?: string; answer?: string; method: string }
export interface Answered { answer: api.Answer; wall: number; cached: boolean; path: string }

const CLASSES = "10";
const REMEMBERED = 300, ANSWERS_REMEMBERED = 30;
const start = new URLSearchParams(location.hash.slice(1));
const whole = (name: string) => (start.has(name) ? Number(start.get(name)) : undefined);
const opacity = whole("opacity") ?? NaN;

/** What the address says, if it is one of the values that there are: a link may say anything. */
const oneOf = <T extends string>(name: string, values: readonly T[], otherwise: T): T =>
  values.find((value) => value === start.get(name)) ?? otherwise;
const keys = <T extends string>(of: Record<T, unknown>) => Object.keys(of) as T[];

export const choice = signal<Choice>({
  model: start.get("model") ?? "", method: start.get("method") ?? "gradcam",
  layer: start.get("layer") ?? "auto", fit: start.get("fit") ?? "auto",
  target: whole("target"), minus: whole("minus"),
  text: start.get("text") || undefined, minusText: start.get("minus_text") || undefined,
  against: start.has("against"), signed: start.has("signed"),
  unit: start.get("unit") ?? undefined, box: start.get("box") ?? undefined,
});
export const query = signal<Query>({ question: start.get("question") ?? undefined,
  answer: start.get("answer") ?? undefined, method: oneOf("word_method", keys(words.answerMethods), "tam") });
/** The first and the last word that are chosen, by their numbers; null for the default. */
export const chosen = signal(start.get("words")?.split("-").map(Number) as [number, number] | undefined ?? null);
export const look = signal<Look>({
  view: oneOf("view", keys(words.views), "overlay"), opacity: Number.isNaN(opacity) ? "heat" : opacity,
  threshold: whole("threshold") ?? 0, colormap: oneOf("colours", colormaps, ""),
  bright: start.has("bright") ? start.get("bright") === "1" : undefined,
});
/** What stands beside the map: "model:" and a name, or "photo:" and a digest; "" for nothing. */
export const beside = signal(start.get("beside") ?? "");
/** A box that was drawn on the photo of a classifier: its edges, with commas between them. */
export const marked = signal(start.get("marked") ?? "");
/** Which part of the page is shown. */
export const room = signal<"look" | "work">(start.get("room") === "work" ? "work" : "look");
export const strip = signal<Photo[]>([]);
export const current = signal<string | null>(null);
export const picture = signal<Picture | null>(null);
export const names = signal<string[]>([]);
/** The loaded models that take words of one's own. */
export const takers = signal<string[]>([]);
export const model = signal<api.Model | null>(null);
export const layers = signal<api.Layer[]>([]);
export const shown = signal<Shown | null>(null);
export const answer = signal<Answered | null>(null);
/** What has been said of an answer that is not whole yet. */
export const said = signal("");
export const busy = signal(false);
export const progress = signal<api.Step | null>(null);
export const problem = signal("");
/** The files that were left out, each with the reason. They are told until something else is chosen. */
export const leftOut = signal<string[]>([]);
/** Why the words of one's own cannot be explained. */
export const wordsProblem = signal("");
export const asksForKey = signal(false);
export const note = signal("");

export const photo = computed(() => strip.value.find(({ digest }) => digest === current.value) ?? null);
/** Whether the model answers questions, and neither predicts nor explains classes. */
export const answers = computed(() => model.value?.kind === "answers");
export const methodNamed = (name: string) => model.value?.methods.find((each) => each.name === name);
export const method = computed(() => methodNamed(choice.value.method) ?? null);
/** Whether the map of a method is scaled by its 99th percentile. */
export const isBright = (method: string) => look.value.bright ?? (!answers.value && methodNamed(method)?.at === "input");
/** The layers with maps, in the order in which they run. */
export const usable = computed(() => layers.value.filter((layer) => layer.explainable && layer.grid));

export const choose = (part: Partial<Choice>) => batch(() => {
  const now = choice.peek(), changes = Object.entries(part).some(([name, value]) => now[name as keyof Choice] !== value);
  if (changes) choice.value = { ...now, ...part };
  leftOut.value = [];
});
export const show = (part: Partial<Look>) => { look.value = { ...look.value, ...part }; };

let linked = start.get("photo");
export type ExampleName = keyof typeof words.sampleNames;
/** The names of the page's own examples by their digests: a link names them, and opens anywhere. */
export const examples = new Map<string, ExampleName>();

effect(() => {  // the address follows the view
  const { model, method, layer, fit, target, minus, text, minusText, against, signed, unit, box } = choice.value;
  const { view, opacity, threshold, colormap, bright } = look.value;
  const { question, answer: given, method: by } = query.value;
  const entries: [string, string | number | undefined | false][] = [
    ["photo", examples.get(current.value ?? "") ?? current.value ?? linked ?? undefined], ["model", model], ["method", method],
    ["layer", layer], ["fit", fit], ["target", target], ["minus", minus],
    ["text", text], ["minus_text", text && minusText],
    ["against", against && 1], ["signed", signed && 1], ["unit", unit], ["box", box], ["view", view], ["opacity", opacity],
    ["threshold", threshold || undefined], ["colours", colormap || undefined],
    ["bright", bright === undefined ? undefined : Number(bright)],
    ["beside", beside.value || undefined], ["marked", marked.value || undefined],
    ["room", room.value === "work" && "work"], ["question", question], ["answer", given],
    ["word_method", question && by], ["words", question && chosen.value?.join("-")]];
  const told = entries.filter(([, value]) => value !== undefined && value !== false && value !== "");
  history.replaceState(null, "",
    `#${new URLSearchParams(told.map(([name, value]) => [name, String(value)]))}`);
});

/** The parameters of the map that is chosen, at the layer's own size and with its own numbers: the
 * page draws it. */
export function parametersOf({ method, layer, fit, ...rest }: Choice) {
  return { method, layer, fit, target: targetOf(rest), signed: rest.signed ? "true" : undefined };
}

function targetOf({ target, minus, text, minusText, against, unit, box, mask }: Partial<Choice>): string | undefined {
  if (unit) {
    const [channel, layer] = [unit.split("@", 1)[0]!, unit.slice(unit.indexOf("@") + 1)];
    return JSON.stringify({ layer, channel: Number(channel) });
  }
  if (text) {
    return JSON.stringify({ text, ...(minusText ? { minus: minusText } : {}), ...(against ? { against } : {}) });
  }
  if (minus === undefined && !against && !box && !mask) return target?.toString();
  return JSON.stringify({
    ...(target === undefined ? {} : { index: target }), ...(minus === undefined ? {} : { minus }),
    ...(box ? { box: box.split(",").map(Number) } : {}), ...(mask ? { mask: { b64: mask } } : {}), ...(against ? { against } : {}) });
}

/** What is explained when another class is chosen. */
export const NOTHING = { target: undefined, minus: undefined, text: undefined, minusText: undefined, unit: undefined,
  box: undefined, mask: undefined };
/** What is explained when another photo or model is chosen: words of one's own are asked again. */
const anew = () => ({ ...NOTHING, text: choice.value.text, minusText: choice.value.minusText });

const known = new Map<string, Shown>();

/** Whether a method makes so many passes that one wants to see them counted. */
export const isSlow = (method: string) =>
  Boolean(methodNamed(method)?.cost.startsWith("N"));

/** An explanation, from this page's memory or the service's. */
export async function explained(asked: Choice, of: Photo, signal: AbortSignal,
    report?: (step: api.Step) => void, about = model.value): Promise<Shown> {
  const path = api.pathOf("explain", asked.model, { ...parametersOf(asked), output: "values",
    size: "layer", normalize: "none", top_k: about?.kind === "detections" ? undefined : CLASSES });
  const key = `${of.digest} ${path}`, before = known.get(key);
  if (before) return { ...before, cached: true };
  const started = performance.now();
  let explanation: api.Explanation, prediction: api.Prediction, phases = "";
  if (isSlow(asked.method)) {
    [explanation, prediction] = await Promise.all([
      api.stream<api.Explanation>(path, of.blob, signal, (step) => { report?.(step); }),
      api.predict(asked.model, asked.fit, CLASSES, of.blob, signal)]);
  } else {
    const { answer, phases: told } = await api.explain(path, of.blob, signal);
    [explanation, prediction, phases] = [answer.explanations[0]!, answer.predictions[0], told];
  }
  const made = { explanation, prediction, values: numbers(explanation.heatmap),
    wall: performance.now() - started, phases, cached: false, path };
  known.set(key, made);
  if (known.size > REMEMBERED) known.delete(known.keys().next().value!);
  return made;
}

const answeredBefore = new Map<string, Answered>();

/** The parameters of a question, except those of drawing. */
export const questionOf = ({ question, answer, method }: Query) => ({ question, answer: answer || undefined, method });

/** An answer to a question, from this page's memory or the service's. */
async function answered(asked: Query, of: Photo, signal: AbortSignal, report: (step: api.Step) => void): Promise<Answered> {
  const path = api.pathOf("answer", choice.peek().model,
    { ...questionOf(asked), output: "values", size: "layer", normalize: "none" });
  const key = `${of.digest} ${path}`, before = answeredBefore.get(key);
  if (before) return { ...before, cached: true };
  const started = performance.now();
  const made = { answer: await api.stream<api.Answer>(path, of.blob, signal, report, ({ text }) => {
    if (!signal.aborted) said.value += text;
  }), wall: performance.now() - started, cached: false, path };
  answeredBefore.set(key, made);
  if (answeredBefore.size > ANSWERS_REMEMBERED) answeredBefore.delete(answeredBefore.keys().next().value!);
  return made;
}

/** The evidence below which the service says that a word is from language. */
const FROM_LANGUAGE = 0.3;

/** Consecutive words as one, as the service has a phrase: the mean of its tokens' maps. */
function phraseOf(words: api.AnswerWord[]): { word: api.AnswerWord; values: Float32Array } {
  const [first] = words as [api.AnswerWord, ...api.AnswerWord[]];
  const tokens = words.reduce((sum, each) => sum + each.tokens, 0);
  const values = new Float32Array(numbers(first.heatmap).length);
  for (const each of words) numbers(each.heatmap).forEach((value, n) => { values[n]! += value * each.tokens / tokens; });
  if (words.length === 1) return { word: first, values };
  const evidence = words.reduce((sum, each) => sum + (each.evidence ?? NaN), 0);
  return { values, word: { ...first, text: words.map(({ text }) => text).join(" "), tokens,
    probability: words.reduce((product, each) => product * each.probability, 1),
    evidence: Number.isNaN(evidence) ? undefined : evidence, from_language: evidence < FROM_LANGUAGE } };
}

/** The words that are chosen: at first the one for which the photo speaks most. */
export const span = computed((): [number, number] | null => {
  const all = answer.value?.answer.words ?? [], now = chosen.value;
  if (now && now[0] >= 0 && now[0] <= now[1] && now[1] < all.length) return now;
  const most = all.reduce((best, { evidence = 0 }, n) => evidence > (all[best]!.evidence ?? 0) ? n : best, 0);
  return all.length ? [most, most] : null;
});
export const phrase = computed(() => {
  const at = span.value;
  return at && answer.value ? phraseOf(answer.value.answer.words.slice(at[0], at[1] + 1)) : null;
});

effect(() => {  // the map follows the words
  const made = answer.value, now = phrase.value;
  if (!made || !now) return;
  const { word, values } = now, { answer: { method, warnings }, ...told } = made;
  shown.value = { ...told, values, phases: "", prediction: {}, explanation: { method, layer: "", warnings,
    heatmap: word.heatmap, target: { index: word.first_token, label: word.text, probability: word.probability } } };
});

/** Digests of the photos that were explained. */
const explainedOnce = new Set<string>();
let asking = new AbortController();
let waiting: ReturnType<typeof setTimeout> | undefined;
const again = signal(0);
/** The text of the answer before: words stay chosen as long as it is the same. */
let answerBefore: string | undefined;

effect(() => {  // the map, or the answer, follows the photo and the choice
  const of = photo.value, asked = choice.value, ready = model.value?.name === asked.model;
  const put = answers.value ? query.value : null;
  void again.value;
  asking.abort();
  clearTimeout(waiting);
  answer.value = null;
  said.value = "";
  wordsProblem.value = "";
  if (put) shown.value = null;
  if (!of || !ready) return;
  if (put && put.question === undefined) {
    busy.value = false;
    return;
  }
  const mine = (asking = new AbortController());
  busy.value = true;
  progress.value = null;
  const report = (step: api.Step) => { if (!mine.signal.aborted) progress.value = step; };
  const work = put ? answered(put, of, mine.signal, report).then((made) => () => {
    const { text } = made.answer;
    if (text !== (answerBefore ?? text)) chosen.value = null;
    answerBefore = text;
    answer.value = made;
  }) : explained(asked, of, mine.signal, report).then((made) => () => {
    explainedOnce.add(of.digest);
    shown.value = made;
  });
  work.then(
    (take) => batch(() => {
      if (mine.signal.aborted) return;
      progress.value = null;
      take();
      problem.value = "";
      busy.value = false;
      void photos.keep(of);
    }),
    (error: unknown) => { if (!mine.signal.aborted) refuse(error, of); });
});

/** Ends what is being asked. */
export function stop(): void {
  asking.abort();
  clearTimeout(waiting);
  [busy.value, progress.value] = [false, null];
}

function refuse(error: unknown, of: Photo): void {
  busy.value = false;
  progress.value = null;
  const status = error instanceof api.Refused ? error.status : undefined;
  if (status === 401) {
    asksForKey.value = true;
  } else if (error instanceof api.Refused && [0, 429, 502, 503, 504].includes(error.status)) {
    const seconds = Math.min(error.retryAfter, 30);
    problem.value = status ? words.busy(seconds) : words.lost;
    waiting = setTimeout(() => { again.value++; }, seconds * 1000);
  } else if (api.isOfPhoto(error) && !explainedOnce.has(of.digest)) {
    leaveOut(of, error.message);
  } else if (status === 422 && choice.value.text) {
    [wordsProblem.value, problem.value, shown.value] = [api.textOf(error), "", null];
  } else {
    problem.value = answers.value ? api.textOf(error) : `${of.name}: ${api.textOf(error)}`;
  }
}

const tellLeftOut = (name: string, why: string) => { leftOut.value = [...leftOut.value, words.leftOut(name, why)]; };

/** Takes what is no photo out of the strip, and says why. */
function leaveOut(of: Photo, why: string): void {
  if (!strip.value.includes(of)) return;
  batch(() => {
    tellLeftOut(of.name, why);
    problem.value = "";
    remove(of.digest);
  });
}

const checked = new WeakSet<Photo>();
let checking = Promise.resolve();
effect(() => {  // what the browser cannot draw may be no photo: the service says so, before it is chosen
  const name = model.value?.name, shownNow = current.value;
  if (!name) return;
  for (const of of strip.value) {
    if (of.thumbnail || of.digest === shownNow || explainedOnce.has(of.digest) || checked.has(of)) continue;
    checked.add(of);
    checking = checking.then(async () => {
      if (strip.value.includes(of)) await api.patiently(() => api.drawn(name, of.blob));
    }).catch((error: unknown) => { if (api.isOfPhoto(error)) leaveOut(of, error.message); });
  }
});

let decoding = 0;
effect(() => {  // the picture follows the photo
  const of = photo.value, mine = ++decoding;
  if (!of) { picture.value = null; return; }
  const take = (made: Picture) => {
    if (mine === decoding) picture.value = made;
    else made.bitmap.close();
  };
  photos.decode(of.blob).then(take, async () => {
    try {
      take(await photos.decode(await api.drawn(choice.peek().model, of.blob)));
      note.value = words.tooLarge;
    } catch { /* the explanation says why */ }
  });
});

/** Takes photos into the strip and shows the first of them. */
export async function add(files: Iterable<File>): Promise<void> {
  const mine: string[] = [], has = (digest: string) => strip.value.some((each) => each.digest === digest);
  leftOut.value = [];
  for (const file of files) {
    const name = file.name || "photo";
    let digest: string, thumbnail: string;
    try {
      digest = await photos.digestOf(file);
      thumbnail = has(digest) ? "" : await photos.thumbnailOf(file);
    } catch {
      tellLeftOut(name, words.unreadable);
      continue;
    }
    batch(() => {
      // All of those before may have been left out already: then this one is shown.
      const isFirst = !mine.some(has);
      if (!has(digest)) strip.value = [...strip.value, { digest, name, blob: file, thumbnail }];
      mine.push(digest);
      if (!isFirst) return;
      if (mine.length === 1) {
        note.value = linked && linked !== digest ? words.otherPhoto : "";
        if (linked) current.value = digest;  // what the link asks is about this photo
        linked = null;
        problem.value = "";
      }
      turnTo(digest);
    });
  }
}

/** Takes one of the page's own examples. */
export async function takeExample(name: ExampleName): Promise<void> {
  const photo = await api.blob(`studio/${name}.jpg`, "image/jpeg"), digest = await photos.digestOf(photo);
  examples.set(digest, name);
  if (linked === name) linked = digest;
  await add([new File([photo], `${name}.jpg`, { type: "image/jpeg" })]);
}

/** Shows another photo, or none: what was asked of the one before does not go over to it. */
function turnTo(digest: string | null): void {
  if (digest === current.value) return;
  choice.value = { ...choice.value, ...anew() };
  [marked.value, current.value, shown.value] = ["", digest, null];  // no photo under the map of another one
}

export function remove(digest: string): void {
  const at = strip.value.findIndex((each) => each.digest === digest);
  const left = strip.value.filter((each) => each.digest !== digest);
  if (strip.value[at]?.thumbnail) URL.revokeObjectURL(strip.value[at].thumbnail);
  batch(() => {
    strip.value = left;
    if (current.value !== digest) return;
    turnTo(left[Math.min(at, left.length - 1)]?.digest ?? null);
  });
}

export function select(digest: string): void {
  batch(() => {
    turnTo(digest);
    leftOut.value = [];
  });
}

/** Moves among the photos of the strip. */
export function step(by: number): void {
  const at = strip.value.findIndex((each) => each.digest === current.value);
  const next = strip.value[(at + by + strip.value.length) % strip.value.length];
  if (next) select(next.digest);
}

async function chooseModel(): Promise<void> {
  const name = choice.peek().model;
  const [found, all] = await Promise.all([api.model(name), api.layers(name)]);
  if (choice.peek().model !== name) return;  // another one was chosen meanwhile
  batch(() => {
    model.value = found;
    layers.value = all;
    const { method, layer } = choice.peek();
    if (found.kind !== "answers" && !found.methods.some((each) => each.name === method && each.available)) {
      choose({ method: found.methods.find((each) => each.available)?.name ?? "gradcam" });
    }
    if (!found.takes_text && choice.peek().text) choose({ text: undefined, minusText: undefined });
    if (layer !== "auto" && !all.some((each) => each.name === layer)) choose({ layer: "auto" });
    problem.value = "";
  });
}

const addresses = signal<ReadonlySet<string> | null>(null);
/** Whether the service has an address of the contract; it does as long as that is not known. */
export const serves = (address: string) => addresses.value?.has(address) ?? true;
export const does = (operation: string) => serves(`/v1/models/{model}:${operation}`);
/** Whether the service can judge the map: it is of a class, whose probability is then measured. */
export const judgeable = computed(() => {
  const { against, unit, text } = choice.value;
  return model.value?.kind === "classes" && does("evaluate") && !against && !unit && !text;
});

/** Loads what the page is about; a service that is not ready is asked again. */
export async function begin(): Promise<void> {
  try {
    const { models: found, takes_text: takes = [] } = await api.models();
    if (!found.length) throw new api.Refused(503, words.noModel);
    [names.value, takers.value] = [found, takes];
    if (!names.value.includes(choice.value.model)) choose({ model: names.value[0]! });
    await chooseModel();
    if (!addresses.value) void api.addresses().then((all) => { addresses.value = all; }, () => undefined);
    if (linked && !current.value) {
      const example = keys(words.sampleNames).find((name) => name === linked);
      const file = example ? null : await photos.kept(linked);
      if (example) await takeExample(example);
      else if (file) await add([file]);
      else note.value = words.missingPhoto;
    }
  } catch (error) {
    const status = error instanceof api.Refused ? error.status : undefined;
    const message = api.textOf(error);
    if (status === 401) { asksForKey.value = true; return; }
    const passes = status === 0 || status === 503 || status === 429;
    problem.value = passes ? words.notReady(message) : message;
    if (passes) setTimeout(begin, 1000);
  }
}

/** Takes a key, and goes on where the service asked for it. */
export function useKey(key: string): void {
  api.keepKey(key);
  asksForKey.value = false;
  if (model.value) again.value++;
  else void begin();
}

export function changeModel(name: string): void {
  batch(() => {
    shown.value = null;
    model.value = null;
    choose({ ...anew(), model: name, layer: "auto" });
  });
  void begin();
}
