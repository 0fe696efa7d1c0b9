// The public HTTP contract of the service, as far as the page uses it.

import { words } from "./words";

export interface Problem { type?: string; title: string; status: number; detail: string; pointer?: string }
export interface Box { left: number; top: number; right: number; bottom: number }
export interface LabelledClass { index: number; label?: string; probability?: number; value?: number }
export interface Detection extends LabelledClass { score: number; box: Box }
export interface Method {
  name: string; summary: string; family: string; paper?: string; cost: string; budget?: number; at: "layer" | "input";
  class_dependence: "full" | "weak" | "none"; signed: boolean; layer?: string;
  available: boolean; reason?: string;
}
export interface Model {
  name: string; device: string; dtype: string; kind: "classes" | "segments" | "detections" | "value" | "answers";
  classes: number; labels: string[];
  /** Further names, in lower case, each with the classes that it means. */
  synonyms: Record<string, number[]>;
  default_layer: string | null; methods: Method[];
  input: { width: number; height: number; mean?: number[]; value_range: "0-1" | "0-255";
    default_fit: "crop" | "squash" | "pad" };
  audited?: { method: string; layer: string };
  /** Whether a target may be a text. */
  takes_text: boolean;
}
export interface Layer {
  name: string; grid?: [number, number]; explainable: boolean; default: boolean; stage: boolean;
}
export interface Explanation {
  target: LabelledClass & { box?: Box; minus?: LabelledClass; against?: true; score?: number; text?: string;
    minus_text?: string; unit?: { layer: string; channel: number } };
  method: string; layer: string; layer_reason?: string; covers?: Box; signed?: true;
  heatmap: { shape: [number, number]; encoding: string; data: string };
  concentration?: number; warnings: string[]; passes?: { made: number; of: number };
}
export interface Prediction { classes?: LabelledClass[]; segments?: (LabelledClass & { share: number })[];
  detections?: Detection[]; values?: LabelledClass[] }
export interface ExplainResponse { predictions: [Prediction]; explanations: Explanation[] }
export interface Alternative { text: string; probability: number }
export interface AnswerToken extends Alternative { alternatives: Alternative[]; evidence?: number }
export interface AnswerWord {
  text: string; first_token: number; tokens: number; probability: number; evidence?: number;
  from_language?: boolean; heatmap: Explanation["heatmap"];
}
export interface Answer {
  text: string; method: string; words: AnswerWord[]; tokens: AnswerToken[]; warnings: string[];
}

/** A problem that the service answered, or status 0 if it did not answer. */
export class Refused extends Error {
  /** The problem's type, without what all types begin with. */
  readonly type: string;
  constructor(readonly status: number, detail: string, readonly retryAfter = 1, type = "") {
    super(detail);
    this.type = type.slice(type.lastIndexOf(":") + 1);
  }
}

const NO_PHOTO = ["undecodable-image", "image-too-large", "body-too-large", "malformed-request", "unsupported-media-type"];
/** Whether a refusal is of the photo itself, not of what is asked about it. */
export const isOfPhoto = (error: unknown): error is Refused => error instanceof Refused && NO_PHOTO.includes(error.type);

/** What an error says to a reader: only the service's own sentences are for one. */
export const textOf = (error: unknown) => error instanceof Refused ? error.message : words.unexpected;

const TRIES = 8, LONGEST = 10;

/** Asks again while the service is busy, as long as it says; for what fills in while one looks. Without an end
 * to the tries, it waits as long as the service says. */
export async function patiently<T>(ask: () => Promise<T>, signal?: AbortSignal, tries = TRIES): Promise<T> {
  for (let left = tries; ; left--) {
    try {
      return await ask();
    } catch (error) {
      const busy = error instanceof Refused && [429, 503].includes(error.status);
      if (!busy || !left || signal?.aborted) throw error;
      const wait = Math.min(error.retryAfter, tries === Infinity ? tries : LONGEST) * 1000;
      await new Promise((resolve) => { setTimeout(resolve, wait); });
      if (signal?.aborted) throw error;
    }
  }
}

const KEY = "gradcam-key";

export function keepKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = sessionStorage.getItem(KEY);
  if (key) headers.set("X-API-Key", key);
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refused(0, words.silent);
  }
  if (response.ok) return response;
  const problem = (await response.json().catch(() => null)) as Problem | null;
  const wait = Number(response.headers.get("Retry-After")) || 1;
  throw new Refused(response.status, problem?.detail ?? words.noReason(response.status), wait, problem?.type);
}

export const get = async <T>(path: string): Promise<T> => (await ask(path)).json() as Promise<T>;
export const place = (model: string) => `v1/models/${encodeURIComponent(model)}`;

export const post = async <T>(path: string, body: FormData): Promise<T> =>
  (await ask(path, { method: "POST", body })).json() as Promise<T>;
export const remove = async (path: string): Promise<void> => { await ask(path, { method: "DELETE" }); };
export const blob = async (path: string, accept: string, signal?: AbortSignal): Promise<Blob> =>
  (await ask(path, { headers: { Accept: accept }, signal })).blob();
/** The lines of an answer in lines, each once it has come. One may hold a picture of many megabytes, so no two are held. */
async function* linesOf<T>({ body }: Response, lost = (error: unknown) => error): AsyncGenerator<T> {
  const reader = body!.pipeThrough(new TextDecoderStream()).getReader();
  for (let parts: string[] = [];;) {
    const { done, value } = await reader.read().catch((error: unknown) => { throw lost(error); });
    const [first, ...others] = done ? ["", ""] : value.split("\n");  // the last line may lack its end
    parts.push(first!);
    for (const other of others) {
      const line = parts.join("");
      parts = [other];
      if (!line) continue;
      let found: T;
      try { found = JSON.parse(line) as T; } catch (error) { throw done ? lost(error) : error; }
      yield found;
    }
    if (done) return;
  }
}

/** What is kept of each line of an answer in lines. */
export async function lines<T, Kept>(path: string, keep: (line: T) => Kept): Promise<Kept[]> {
  const kept: Kept[] = [];
  for await (const line of linesOf<T>(await ask(path))) kept.push(keep(line));
  return kept;
}

export const models = () => get<{ models: string[]; takes_text?: string[] }>("v1/models");
/** The addresses that the service has, as its contract names them. */
export const addresses = async () => new Set(await get<string[]>("studio/addresses.json"));
export const model = (name: string) => get<Model>(place(name));
export const layers = async (name: string) =>
  (await get<{ layers: Layer[] }>(`${place(name)}/layers`)).layers;

/** Path and query of a call about a photo; the parameters that are undefined are left out. */
export function pathOf(verb: string, model: string, parameters: Record<string, string | undefined>): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined) query.set(name, value);
  return `${place(model)}:${verb}?${query}`;
}

const LONGEST_PATH = 1000;

/** Asks something about a photo; parameters that are too long for an address go into a form. */
function askOf(photo: Blob, path: string, accept: string, signal?: AbortSignal): Promise<Response> {
  if (path.length <= LONGEST_PATH) {
    // Sent as image/*, a file of another kind is refused as a photo that cannot be read, and not as a wrong request.
    const type = photo.type.startsWith("image/") ? photo.type : "image/*";
    const headers = { "Content-Type": type, Accept: accept };
    return ask(path, { method: "POST", headers, body: photo, signal });
  }
  const [address, query] = path.split("?") as [string, string], form = new FormData();
  for (const [name, value] of new URLSearchParams(query)) form.append(name, value);
  form.append("image", photo);
  return ask(address, { method: "POST", headers: { Accept: accept }, body: form, signal });
}

export async function explain(path: string, photo: Blob, signal: AbortSignal):
    Promise<{ answer: ExplainResponse; phases: string }> {
  const response = await askOf(photo, path, "application/json", signal);
  const answer = (await response.json()) as ExplainResponse;
  const timings = response.headers.get("Server-Timing") ?? "";
  const phases = [...timings.matchAll(/([^,;\s]+);dur=([\d.]+)/g)].filter(([, , time]) => Number(time) >= 0.5)
    .map(([, phase, time]) => `${words.phases[phase!] ?? phase!.replaceAll("_", " ")} ${Number(time).toFixed(0)}`).join(", ");
  return { answer, phases };
}

export interface Step { done: number; total: number }
export interface Score {
  value?: number; better: "higher" | "lower"; convention: string; verdict?: string;
  baselines: Record<string, number | null>; details: Record<string, number | number[] | null>;
  warning?: string;
}
export interface Evaluation { scores: Record<string, Score>; warnings: string[] }
export interface Activation {
  layer: string; type: string; channels: number[];
  output: { shape: number[]; mean: number; zeros: number };
  concepts?: { share: number; classes?: LabelledClass[] }[];
}
export interface Job {
  id: string; kind: "explain" | "audit"; state: "waiting" | "running" | "done" | "cancelled"; model: string;
  created: string; eta_seconds?: number; counts: { total: number; done: number; failed: number; left: number };
}
export interface Item { item: string; cursor: number; explanations?: Explanation[]; error?: string }
export interface JobClusters {
  explained: number; read: number; note?: string;
  classes: { class: { index?: number; label: string }; maps: number; note?: string; own_place?: { sentence: string };
    clusters: Cluster[] }[];
}
export interface Cluster { cluster: number; suspect: boolean; sentences: string[]; items: string[]; mean: number[][] }
export interface Audit {
  photos: number; findings: { kind: string; sentence: string }[]; why_none?: string | null;
  recommendation: { method: string; layer: string; reason: string } | null;
}
type Quartiles = [number, number, number];
export interface Drift {
  made: string | null; photos: number; recorded: number; moved: boolean | null; missing: string | null;
  shifts: { label: string | null; statistic: string; psi: number; before: Quartiles; after: Quartiles; sentence: string }[];
}
type Line = { progress?: Step; token?: AnswerToken; problem?: Problem; error?: string };

/** What the last line of an answer in lines is; the lines before it tell the progress, and the tokens of
 * an answer to a question. */
export async function stream<T>(path: string, photo: Blob, signal: AbortSignal,
    progress: (step: Step) => void, say?: (token: AnswerToken) => void): Promise<T> {
  const response = await askOf(photo, path, "application/x-ndjson", signal);
  const lost = (error: unknown) => signal.aborted ? error : new Refused(0, words.endedEarly);
  let last: (T & Line) | undefined;
  for await (const line of linesOf<T & Line>(response, lost)) {
    if (line.problem) throw new Refused(line.problem.status, line.problem.detail, 1, line.problem.type);
    if (line.progress) progress(line.progress);
    else if (line.token) say?.(line.token);
    else last = line;
  }
  if (!last) throw new Refused(0, words.endedEarly);
  return last;
}

export async function predict(model: string, fit: string, count: string, photo: Blob,
    signal: AbortSignal): Promise<Prediction> {
  const path = pathOf("predict", model, { fit, top_k: count });
  const response = await askOf(photo, path, "application/json", signal);
  return ((await response.json()) as { predictions: [Prediction] }).predictions[0];
}

/** An answer of another verb about a photo: as JSON, or as a picture. */
export const about = (verb: string, model: string, parameters: Record<string, string | undefined>,
    photo: Blob, accept: string, signal?: AbortSignal): Promise<Response> =>
  askOf(photo, pathOf(verb, model, parameters), accept, signal);

/** The photo as the service reads it, for files that the browser cannot decode. */
export async function drawn(model: string, photo: Blob): Promise<Blob> {
  const parameters = { output: "overlay", opacity: "0", fit: "squash" };
  return (await about("explain", model, parameters, photo, "image/png")).blob();
}
