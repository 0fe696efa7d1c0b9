// The state of the page: what is asked, how it is drawn, and what came back. All of it but the
// photo and a painted mask is in the address, so that a link brings the view back.

import { batch, computed, effect, signal, type Signal } from "@preact/signals";
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
const keys = <T extends string>(of: Record<T, unknown>) => Object.keys(of) as T[];

/** The view that an address has, where it says one of the values that there are: a link may say anything. */
function viewIn(address: string) {
  const told = new URLSearchParams(address.slice(1)), text = (name: string) => told.get(name) ?? undefined;
  const whole = (name: string) => (told.has(name) ? Number(told.get(name)) : undefined);
  const oneOf = <T extends string>(name: string, values: readonly T[], otherwise: T): T =>
    values.find((value) => value === told.get(name)) ?? otherwise;
  const opacity = whole("opacity") ?? NaN;
  const choice: Choice = {
    model: text("model") ?? "", method: text("method") ?? "gradcam", layer: text("layer") ?? "auto", fit: text("fit") ?? "auto",
    target: whole("target"), minus: whole("minus"), text: text("text") || undefined, minusText: text("minus_text") || undefined,
    against: told.has("against"), signed: told.has("signed"), unit: text("unit"), box: text("box"),
  };
  const look: Look = {
    view: oneOf("view", keys(words.views), "overlay"), opacity: Number.isNaN(opacity) ? "heat" : opacity,
    threshold: whole("threshold") ?? 0, colormap: oneOf("colours", colormaps, ""),
    bright: told.has("bright") ? told.get("bright") === "1" : undefined,
  };
  const query: Query = { question: text("question"), answer: text("answer"),
    method: oneOf("word_method", keys(words.answerMethods), "tam") };
  const chosen = text("words")?.split("-").map(Number) as [number, number] | undefined ?? null;
  return { photo: told.get("photo"), choice, look, query, chosen, beside: text("beside") ?? "", marked: text("marked") ?? "",
    room: oneOf("room", ["look", "work"] as const, "look"), opened: text("job") ?? "", item: text("item") ?? "" };
}

const start = viewIn(location.hash);
export const choice = signal(start.choice);
export const query = signal(start.query);
/** The first and the last word that are chosen, by their numbers; null for the default. */
export const chosen = signal(start.chosen);
export const look = signal(start.look);
/** What stands beside the map: "model:" and a name, or "photo:" and a digest; "" for nothing. */
export const beside = signal(start.beside);
/** A box that was drawn on the photo of a classifier: its edges, with commas between them. */
export const marked = signal(start.marked);
/** Which part of the page is shown. */
export const room = signal(start.room);
/** The job that is open, and the item of it whose picture alone is shown; "" for none. */
export const opened = signal(start.opened), item = signal(start.item);
/** Whether the keys are listed, and the step of the tour, from 1; they are not in the address. */
export const help = signal(false), tour = signal(0);
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

let linked = start.photo;
export type ExampleName = keyof typeof words.sampleNames;
/** The names of the page's own examples by their digests: a link names them, and opens anywhere. */
export const examples = new Map<string, ExampleName>();

function named(): string | undefined {
  const digest = current.value ?? linked ?? "";
  return examples.get(digest) ?? (digest || undefined);
}
/** The place that the address had last: Back and Forward go from one to another. All else changes in place. */
let place = "", stays = true;

/** Changes the view where one is, so that Back does not go to what was before. */
function inPlace(change: () => void): void {
  stays = true;
  try { batch(change); } finally { stays = false; }
}

type Entry = [string, string | number | undefined | false];
effect(() => {  // the address follows the view
  const { model, method, layer, fit, target, minus, text, minusText, against, signed, unit, box } = choice.value;
  const { view, opacity, threshold, colormap, bright } = look.value;
  const { question, answer: given, method: by } = query.value;
  const entries: Entry[] = [
    ["photo", named()], ["model", model], ["method", method],
    ["layer", layer], ["fit", fit], ["target", target], ["minus", minus],
    ["text", text], ["minus_text", text && minusText],
    ["against", against && 1], ["signed", signed && 1], ["unit", unit], ["box", box], ["view", view], ["opacity", opacity],
    ["threshold", threshold || undefined], ["colours", colormap || undefined],
    ["bright", bright === undefined ? undefined : Number(bright)],
    ["beside", beside.value || undefined], ["marked", marked.value || undefined],
    ...(room.value === "work" ? [["room", "work"], ["job", opened.value], ["item", item.value]] satisfies Entry[] : []),
    ["question", question], ["answer", given],
    ["word_method", question && by], ["words", question && chosen.value?.join("-")]];
  const told = entries.filter(([, value]) => value !== undefined && value !== false && value !== "");
  const now = JSON.stringify([named(), model, room.value, room.value === "work" && [opened.value, item.value], help.value, tour.value]);
  const isNew = now !== place && !stays;
  place = now;
  history[isNew ? "pushState" : "replaceState"](
    { help: help.value, tour: tour.value, follows: isNew || Boolean((history.state as Past)?.follows) }, "",
    `#${new URLSearchParams(told.map(([name, value]) => [name, String(value)]))}`);
});
stays = false;

/** What an entry of the history keeps beside the address, and whether the entry before it is this page's, too. */
type Past = { help: boolean; tour: number; follows: boolean } | null;

/** Closes what stands over the page: one is where one was before. */
export function leave(over: Signal<boolean> | Signal<string>): void {
  if (!over.value) return;
  if ((history.state as Past)?.follows) history.back();
  else inPlace(() => { over.value = typeof over.value === "string" ? "" : false; });
}

/** How far each part of the page is scrolled: one comes back to where one was. */
export const scrolled = { look: 0, work: 0 };
let roomBefore = room.peek();
effect(() => {
  scrolled[roomBefore] = scrollY;
  roomBefore = room.value;
});
history.scrollRestoration = "manual";

addEventListener("popstate", ({ state }) => inPlace(() => {
  const view = viewIn(location.hash), past = state as Past;
  const of = strip.value.find(({ digest }) => [digest, examples.get(digest)].includes(view.photo ?? ""));
  const isSame = Boolean(of) && current.value === of?.digest, isSameModel = view.choice.model === choice.value.model;
  const put = <T>(to: Signal<T>, value: T) => { if (JSON.stringify(value) !== JSON.stringify(to.value)) to.value = value; };
  choose({ ...view.choice, mask: isSame ? choice.value.mask : undefined });
  put(look, view.look);
  put(query, view.query);
  put(chosen, view.chosen);
  [beside.value, marked.value, room.value, item.value] = [view.beside, view.marked, view.room, view.item];
  if (view.room === "work") opened.value = view.opened;  // one comes back to what one has found in it
  [help.value, tour.value] = [past?.help ?? false, past?.tour ?? 0];
  if (isSame && isSameModel) return;
  [linked, current.value, shown.value, note.value, problem.value] = [of ? null : view.photo, of?.digest ?? null, null, "", ""];
  if (isSameModel) void openLinked();
  else {
    model.value = null;
    void begin();
  }
}));

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

/** Takes what cannot be explained out of the strip, and says why. */
function leaveOut(of: Photo, why: string): void {
  if (!strip.value.includes(of)) return;
  inPlace(() => {
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

/** Shows the photo of the address, if the page can get it. */
async function openLinked(): Promise<void> {
  if (!linked || current.value) return;
  const example = keys(words.sampleNames).find((name) => name === linked);
  const file = example ? null : await photos.kept(linked);
  if (example) await takeExample(example);
  else if (file) await add([file]);
  else note.value = words.missingPhoto;
}

/** Loads what the page is about; a service that is not ready is asked again. */
export async function begin(): Promise<void> {
  try {
    const { models: found, takes_text: takes = [] } = await api.models();
    if (!found.length) throw new api.Refused(503, words.noModel);
    [names.value, takers.value] = [found, takes];
    if (!names.value.includes(choice.value.model)) inPlace(() => choose({ model: names.value[0]! }));
    await chooseModel();
    if (!addresses.value) void api.addresses().then((all) => { addresses.value = all; }, () => undefined);
    await openLinked();
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
