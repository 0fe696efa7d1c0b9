// What takes longer than a look: jobs and their clusters, audits, and the drift of a live model.

import { batch, effect, signal, untracked, type Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import * as api from "./api";
import { drawn } from "./code";
import { paint } from "./colours";
import { Curve } from "./curve";
import type { Photo } from "./photos";
import { place } from "./smallmap";
import { save } from "./takealong";
import { choice, item as pictured, leave, look, model, opened, room, select, serves, strip } from "./view";
import { words } from "./words";

const EVERY = 2000, LISTED = "20";
/** How many pictures are added by a click, and how many stand on the page at most. */
const FEW = 24, MOST = 8 * FEW;
/** How many results are read at once, so that the first are shown soon, and by a click. The service gives so many lines at once. */
const PAGE = 25, BLOCK = 200, LINES = 10_000;
/** What of a result's line is kept. */
interface Row { cursor: number; item: string; label: string; probability?: number; warnings: string[]; error?: string }
export const jobs = signal<api.Job[]>([]);
/** The width of a picture of the gallery, in pixels; that of a screen for one alone. */
const WIDE = 320;
const results = signal<Row[]>([]), most = signal(BLOCK);
const clusters = signal<api.JobClusters | null>(null);
const audit = signal<api.Audit | null>(null);
const drift = signal<api.Drift | null>(null);
/** PSI of each statistic at the times at which the page looked. */
const history = signal<Record<string, number[]>>({});
/** Why what was asked for was refused, and why nothing new is known. */
const refusal = signal(""), problem = signal("");
const said = (error: unknown) => { refusal.value = api.textOf(error); };
/** Whether the service has answered that this key, or nobody, may see jobs. */
let closed = false;
const ended = ({ state }: api.Job) => state === "done" || state === "cancelled";

async function refresh(): Promise<void> {
  if (closed) return;
  try {
    jobs.value = (await api.get<{ jobs: api.Job[] }>(`v1/jobs?limit=${LISTED}`)).jobs;
    const job = jobs.value.find(({ id }) => id === opened.value);
    if (job) await follow(job);
    if (model.value) {
      drift.value = await api.get<api.Drift>(`${api.place(model.value.name)}/drift`);
      history.value = Object.fromEntries(drift.value.shifts.map((shift) => {
        const key = `${shift.label ?? ""} ${shift.statistic}`;
        return [key, [...(history.value[key] ?? []), shift.psi].slice(-60)];
      }));
    }
    problem.value = "";
  } catch (error) {
    problem.value = api.textOf(error);
    closed = error instanceof api.Refused && [401, 403, 404].includes(error.status);
  }
}

/** Reads what is new of the job that is open. */
async function follow(job: api.Job): Promise<void> {
  if (job.kind === "audit") {
    const found = (await api.get<{ audit: api.Audit | null }>(`v1/audits/${job.id}`)).audit;
    if (opened.value === job.id) audit.value = found;
    return;
  }
  await read(job);
  if (ended(job) && !clusters.value) {
    const found = await api.get<api.JobClusters>(`v1/jobs/${job.id}/clusters`);
    if (opened.value === job.id) clusters.value = found;
  }
}

const rowOf = ({ cursor, item, error, explanations = [] }: api.Item): Row => ({ cursor, item, error,
  label: explanations.map(({ target }) => target.label ?? target.index).join(", "),
  probability: explanations[0]?.target.probability, warnings: explanations.flatMap(({ warnings }) => warnings) });

let reading: Promise<void> = Promise.resolve();

/** Reads the results that are new, up to as many as are wanted, once those are read that are being read. */
function read(job: api.Job): Promise<void> {
  return reading = reading.catch(() => undefined).then(() => readNew(job));
}

async function readNew(job: api.Job): Promise<void> {
  while (opened.value === job.id) {
    const after = results.value.at(-1)?.cursor ?? 0;
    const left = Math.min(job.counts.done + job.counts.failed, most.value) - results.value.length;
    if (left <= 0) return;
    const rows = await api.lines(`v1/jobs/${job.id}/results?after=${after}&limit=${Math.min(left, PAGE)}&maps=false`, rowOf);
    if (!rows.length || opened.value !== job.id) return;
    if (after !== (results.value.at(-1)?.cursor ?? 0)) continue;  // the job was closed and opened again meanwhile
    results.value = [...results.value, ...rows];
  }
}

/** What a job calls a photo of the strip: its name, unless one before it has the same. */
const idOf = ({ name, digest }: Photo, at: number, all: Photo[]) =>
  all.findIndex((each) => each.name === name) < at ? `${digest.slice(0, 8)}-${name}` : name;
const ofStrip = () => strip.value.map((photo, ...place) => ({ name: idOf(photo, ...place), blob: photo.blob, digest: photo.digest }));

type Sent = [job: string, digests: Record<string, string>];
const SENT = "gradcam-sent";
/** The photos of the jobs that this browser sent, the latest job first: each item's digest. A name may be that of several. */
const sent: Sent[] = (() => {
  try { return JSON.parse(localStorage.getItem(SENT) ?? "[]") as Sent[]; } catch { return []; }
})();

function keepSent(job: string, photos: { name: string; digest?: string }[]): void {
  sent.unshift([job, Object.fromEntries(photos.flatMap(({ name, digest }) => digest ? [[name, digest]] : []))]);
  sent.length = Math.min(sent.length, Number(LISTED));
  try { localStorage.setItem(SENT, JSON.stringify(sent)); } catch { /* the page knows it until it is left */ }
}

/** Sends the photos of the strip, or those of a folder, to be explained or audited. A box is of one photo alone. A
 * threshold hides nothing in a picture of the service: it would change what is hot, and the warnings of that. */
async function send(kind: "jobs" | "audits", photos: { name: string; blob: Blob; digest?: string }[]): Promise<void> {
  const form = new FormData();
  const parameters = kind === "audits" ? { fit: choice.value.fit }
    : drawn({ ...choice.value, box: undefined }, { ...look.value, view: "overlay", threshold: 0 });
  form.append("model", choice.value.model);
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined) form.append(name, value);
  for (const { name, blob } of photos) form.append("image", blob, name);
  refusal.value = "";
  try {
    const { id } = await api.post<api.Job>(`v1/${kind}`, form);
    keepSent(id, photos);
    opened.value = id;
    await refresh();
  } catch (error) { said(error); }
}

/** The picture of an item, which the service reduces: a photo may have many megapixels. */
const pictureOf = (job: string, item: string, width: number, signal?: AbortSignal): Promise<Blob> =>
  api.blob(`v1/jobs/${job}/results/${encodeURIComponent(item)}?width=${Math.round(width)}`, "image/jpeg", signal);

function Thumbnail({ job, item }: { job: string; item: string }) {
  const image = useRef<HTMLImageElement>(null);
  useEffect(() => {
    let address = "";
    const gone = new AbortController();
    pictureOf(job, item, WIDE, gone.signal).then((small) => {
      if (gone.signal.aborted) return;
      address = URL.createObjectURL(small);
      image.current!.src = address;
    }, () => { /* its sentence stands below */ });
    return () => { gone.abort(); URL.revokeObjectURL(address); };
  }, [job, item]);
  return <img ref={image} alt="" />;
}

/** Opens a photo of a job where one looks. Of a photo that is not the page's own there is the picture alone: the heat
 * is painted on it, so that a model would see something else. */
function lookAt(job: string, item: string): void {
  const digest = sent.find(([id]) => id === job)?.[1][item], own = strip.value.find((each) => each.digest === digest);
  refusal.value = "";
  batch(() => {
    if (own) {
      select(own.digest);
      room.value = "look";
    } else pictured.value = item;
  });
}

/** The picture of a photo that the page does not have, once it has come. */
function Pictured({ job, item }: { job: string; item: string }) {
  const dialog = useRef<HTMLDialogElement>(null), image = useRef<HTMLImageElement>(null);
  useEffect(() => {
    let address = "";
    const gone = new AbortController();
    pictureOf(job, item, screen.width * devicePixelRatio, gone.signal).then((picture) => {
      if (gone.signal.aborted) return;
      address = URL.createObjectURL(picture);
      image.current!.src = address;
      dialog.current!.showModal();
    }).catch((error: unknown) => {
      if (gone.signal.aborted) return;
      said(error);
      leave(pictured);
    });
    return () => { gone.abort(); URL.revokeObjectURL(address); };
  }, [job, item]);
  return <dialog ref={dialog} class="pictured" aria-label={item} onClose={() => leave(pictured)}>
    <img ref={image} alt={words.mapOf(item)} />
    <p>{strip.value.some(({ name }) => name === item) ? words.sameName(item) : words.notHere(item)}</p>
    <form method="dialog"><button>{words.close}</button></form>
  </dialog>;
}

/** Where one is in a list of the job that is open: its page, how many pictures stand there, whether it is unfolded, and
 * the order that the page is of. */
interface List { page: Signal<number>; count: Signal<number>; isOpen: Signal<boolean>; order: string }
/** The lists by their names: one comes back to where one was. */
const lists = new Map<string, List>();

function listOf(name: string, order = "", isOpen = false): List {
  const list = lists.get(name) ?? { page: signal(0), count: signal(FEW), isOpen: signal(isOpen), order };
  lists.set(name, list);
  return list;
}

function Items({ job, name, items, order = "" }: { job: string; name: string; items: { item: string; text: string; failed?: boolean }[]; order?: string }) {
  const list = listOf(name, order), { page, count } = list;
  useEffect(() => { if (list.order !== order) [list.order, page.value] = [order, 0]; }, [order]);
  const pages = Math.ceil(items.length / MOST), at = Math.max(Math.min(page.value, pages - 1), 0);
  const from = at * MOST, to = Math.min(from + count.value, items.length);
  const turn = (by: number) => () => { [page.value, count.value] = [at + by, FEW]; };
  return <>
    <ul class="grid">{items.slice(from, to).map(({ item, text, failed }) => <li key={item}>
      <button type="button" class="map" onClick={() => lookAt(job, item)}>
        {!failed && <Thumbnail job={job} item={item} />}<span>{item}<br /><small>{text}</small></span></button></li>)}
    </ul>
    <p class="row">
      {to < Math.min(from + MOST, items.length) && <button type="button"
        onClick={() => { count.value += FEW; }}>{words.showMore(Math.min(from + MOST, items.length) - to)}</button>}
      {pages > 1 && <>
        <button type="button" class="before" disabled={at === 0} onClick={turn(-1)}>{words.resultsBefore}</button>
        <span class="soft">{words.resultsShown(from + 1, to, items.length)}</span>
        <button type="button" class="after" disabled={at === pages - 1} onClick={turn(1)}>{words.resultsAfter}</button></>}
    </p>
  </>;
}

type Order = keyof typeof words.orders;
type Which = keyof typeof words.which;
/** Which results are shown of the job that is open, and in which order. */
const order = signal<Order>("read"), which = signal<Which>("all"), label = signal(""), least = signal(0), greatest = signal(1);
const ORDERS: Record<Order, (one: Row, other: Row) => number> = {
  read: (one, other) => one.cursor - other.cursor,
  class: (one, other) => one.label.localeCompare(other.label),
  sure: (one, other) => (other.probability ?? -1) - (one.probability ?? -1),
  unsure: (one, other) => (one.probability ?? 2) - (other.probability ?? 2),
  warnings: (one, other) => other.warnings.length - one.warnings.length,
};
const WHICH: Record<Which, (row: Row) => boolean> = {
  all: () => true, warned: ({ warnings }) => warnings.length > 0, unwarned: ({ warnings, error }) => !warnings.length && !error,
  failed: ({ error }) => Boolean(error),
};

effect(() => {  // what was read is of the job that was open
  const id = opened.value, job = untracked(() => jobs.value.find((each) => each.id === id));
  [results.value, most.value, clusters.value, audit.value] = [[], BLOCK, null, null];
  [order.value, which.value, label.value, least.value, greatest.value] = ["read", "all", "", 0, 1];
  lists.clear();
  if (job) untracked(() => void follow(job).catch(said));
});

function Select<T extends string>({ id, text, of, options }: {
  id: string; text: string; of: { value: T }; options: readonly (readonly [T, string])[] }) {
  return <label>{text} <select id={id} value={of.value}
    onChange={(event) => { of.value = event.currentTarget.value as T; }}>
    {options.map(([value, name]) => <option key={value} value={value}>{name}</option>)}</select></label>;
}

/** The results of a job: all that were read, in an order, or those of a class, a probability or with a warning. */
function Results({ job }: { job: api.Job }) {
  const all = results.value, ready = job.counts.done + job.counts.failed;
  const labels = [...new Set(all.map((row) => row.label))].filter(Boolean).sort();
  const items = all.filter((row) => WHICH[which.value](row) && (!label.value || row.label === label.value) &&
    (row.probability ?? (row.error ? 0 : 1)) >= least.value && (row.probability ?? (row.error ? 1 : 0)) <= greatest.value).sort(ORDERS[order.value]);
  const readMore = (count: number) => {
    most.value = count;
    void read(job).catch(said);
  };
  const share = (id: string, text: string, of: { value: number }) => <label>{text}{" "}
    <input id={id} type="number" min={0} max={1} step={0.05} value={of.value} onInput={({ currentTarget }) => {
      if (!Number.isNaN(currentTarget.valueAsNumber)) of.value = currentTarget.valueAsNumber;
    }} /></label>;
  return <>
    <div class="looks" role="group" aria-label={words.filter}>
      <Select id="order" text={words.order} of={order} options={Object.entries(words.orders) as [Order, string][]} />
      <Select id="label" text={words.class} of={label} options={[["", words.everyClass], ...labels.map((each) => [each, each] as const)]} />
      <Select id="which" text={words.show} of={which} options={Object.entries(words.which) as [Which, string][]} />
      {share("least", words.atLeast, least)}{share("greatest", words.atMost, greatest)}
    </div>
    <p class="soft" id="read" role="status">{words.found(items.length, all.length, ready)}{" "}
      {all.length === most.value && ready > all.length && <>
        <button type="button" id="read-more" onClick={() => readMore(most.value + BLOCK)}>
          {words.readMore(Math.min(ready - all.length, BLOCK))}</button>{" "}
        <button type="button" id="read-all" onClick={() => readMore(Infinity)}>{words.readAll}</button></>}</p>
    <Items job={job.id} name="results" order={[order, which, label, least, greatest].map(({ value }) => value).join(" ")} items={items.map(({ item, label, probability, warnings, error }) => ({ item, failed: Boolean(error), text: error ??
      `${label}${probability === undefined ? "" : ` ${probability.toFixed(3)}`}${warnings.length ? `; ${words.warned(warnings.length)}` : ""}` }))} />
    <Downloads job={job} />
  </>;
}

/** The files of a job's results that the service makes. */
function Downloads({ job }: { job: api.Job }) {
  const { id } = job, at = `v1/jobs/${id}`;
  const files = [...(ended(job) ? [["zip", `${at}/archive`], ["parquet", `${at}/archive?format=parquet`]] as const : []),
    ...(clusters.value?.classes.some((each) => each.clusters.length) ? [["csv", `${at}/clusters`, "text/csv"]] as const : []),
    ...(job.counts.total <= LINES ? [["ndjson", `${at}/results`]] as const : [])];
  return <p class="row" role="group" aria-label={words.download}><span class="soft">{words.download}</span>
    {files.map(([kind, path, accept]) => <button key={kind} type="button"
      onClick={() => void keep(path, `${id}.${kind}`, accept).catch(said)}>{words.downloads[kind]}</button>)}</p>;
}

/** Saves what an address has. The browser reads it by itself, without memory for it, if it needs no header. */
async function keep(path: string, name: string, accept?: string): Promise<void> {
  save(accept || api.hasKey() ? await api.blob(path, accept ?? "*/*") : path, name);
}

function Mean({ mean }: { mean: number[][] }) {
  const canvas = useRef<HTMLCanvasElement>(null), side = 112;
  useEffect(() => {
    const heat = place(Float32Array.from(mean.flat()), [mean.length, mean[0]!.length],
      { left: 0, top: 0, right: side, bottom: side }, side, side, false);
    const image = new ImageData(side, side);
    paint(heat, { view: "heat", opacity: 1, threshold: 0, colormap: "" }, image);
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [mean]);
  return <canvas ref={canvas} width={side} height={side} aria-hidden="true" />;
}

/** A cluster, whose pictures are fetched once it is opened. */
function Cluster({ job, of, group }: { job: string; of: string; group: api.Cluster }) {
  const name = `${group.cluster} ${of}`, { isOpen } = listOf(name);
  return <details open={isOpen.value} onToggle={(event) => { isOpen.value = event.currentTarget.open; }}>
    <summary class="cluster"><Mean mean={group.mean} /> {words.clusterOf(group.items.length)}{" "}
      {group.suspect && <strong class="warning">{words.suspect}</strong>} {group.sentences.join("; ")}</summary>
    {isOpen.value && <Items job={job} name={name} items={group.items.map((item) => ({ item, text: "" }))} />}
  </details>;
}

function Clusters({ job, found }: { job: string; found: api.JobClusters }) {
  return <>
    <h3>{words.clusters}</h3>
    {found.classes.map(({ class: of, maps, note, own_place: own, clusters: groups }) => {
      const { isOpen } = listOf(of.label, "", groups.some(({ suspect }) => suspect));
      return <details key={of.label} open={isOpen.value} onToggle={(event) => { isOpen.value = event.currentTarget.open; }}>
        <summary>{of.label}: {words.mapsIn(maps, groups.length)}</summary>
        {note && <p class="soft">{note}</p>}
        {own && <p class="warning">{own.sentence}</p>}
        {groups.map((group) => <Cluster key={group.cluster} job={job} of={of.label} group={group} />)}
      </details>;
    })}
  </>;
}

function Audit({ job, now }: { job: string; now: api.Audit }) {
  const { recommendation: best } = now;
  return <>
    <p>{words.photosMeasured(now.photos)} {best ? words.recommends(best.method, best.layer, best.reason)
      : words.noRecommendation(now.why_none ?? "")}</p>
    <ul>{now.findings.map(({ sentence }) => <li key={sentence}>{sentence}</li>)}</ul>
    <button type="button" onClick={() => void api.blob(`v1/audits/${job}/report`, "text/html").then((page) => save(page, "audit.html")).catch(said)}>{words.report}</button>
  </>;
}

function JobView({ job }: { job: api.Job }) {
  const { total, done, failed, left } = job.counts, isOpen = opened.value === job.id;
  return <li>
    <div class="row">
      <button type="button" aria-expanded={isOpen} onClick={() => { opened.value = isOpen ? "" : job.id; }}>
        {words.job(job.kind, job.model, new Date(job.created).toLocaleString())}</button>
      <progress value={total - left} max={total} aria-label={words.job(job.kind, job.model, job.id)} />
      <span>{words.state(job.state, done, failed, left, job.eta_seconds)}</span>
      {!ended(job) && <button type="button" class="quiet"
        onClick={() => void api.remove(`v1/jobs/${job.id}`).then(refresh).catch(said)}>{words.cancel}</button>}
    </div>
    {isOpen && job.kind === "explain" && <>
      <Results job={job} />
      {clusters.value && <Clusters job={job.id} found={clusters.value} />}
    </>}
    {isOpen && job.kind === "audit" && audit.value && <Audit job={job.id} now={audit.value} />}
  </li>;
}

function Quartiles({ values, most }: { values: [number, number, number]; most: number }) {
  const [low, middle, high] = values.map((value) => (100 * value) / (most || 1)) as [number, number, number];
  return <svg class="quartiles" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect x={low} y="1" width={Math.max(high - low, 0.5)} height="6" fill="currentColor" opacity="0.35" />
    <rect x={middle - 0.5} y="0" width="1" height="8" fill="currentColor" /></svg>;
}

function Drift({ now }: { now: api.Drift }) {
  const verdict = now.moved === null ? words.unknown(now.missing ?? "") : now.moved ? words.moved : words.unmoved;
  return <>
    <p id="drift">{now.made ? `${words.compared(now.recorded, now.photos)} ${verdict}` : words.noReference(now.recorded)}</p>
    <ul class="shifts">{now.shifts.map(({ statistic, label, before, after, sentence, psi }) => {
      const key = `${label ?? ""} ${statistic}`, most = Math.max(before[2], after[2]), line = history.value[key] ?? [psi];
      return <li key={key}><strong>{label ? `${label}: ` : ""}{statistic}</strong>
        <Quartiles values={before} most={most} /><Quartiles values={after} most={most} />
        <Curve points={line} most={Math.max(...line, 0.25)} />
        <small>{sentence}</small></li>;
    })}</ul>
  </>;
}

export function Work() {
  useEffect(() => {
    closed = false;
    void refresh();
    const timer = setInterval(() => void refresh(), EVERY);
    return () => clearInterval(timer);
  }, []);
  return <main class="work">
    {pictured.value && <Pictured job={opened.value} item={pictured.value} />}
    {(refusal.value || problem.value) &&
      <p role="alert" class="card problem">{refusal.value || problem.value}</p>}
    <section class="card" aria-labelledby="jobs-heading">
      <h2 id="jobs-heading">{words.jobs}</h2>
      <p class="soft">{words.jobsHint}</p>
      <p class="row">
        <button type="button" id="job" disabled={!strip.value.length}
          onClick={() => void send("jobs", ofStrip())}>{words.explainAll(strip.value.length)}</button>
        <label class="button">{words.folder}
          <input id="folder" type="file" multiple class="hidden" ref={(input) => input?.setAttribute("webkitdirectory", "")}
            onChange={({ currentTarget }) => {
              const files = [...(currentTarget.files ?? [])].filter(({ type }) => type.startsWith("image/"));
              currentTarget.value = "";
              if (files.length) void send("jobs", files.map((blob) => ({ name: blob.webkitRelativePath || blob.name, blob })));
              else refusal.value = words.noPhotos;
            }} /></label>
        {serves("/v1/audits") && <button type="button" id="audit" disabled={!strip.value.length}
          onClick={() => void send("audits", ofStrip())}>{words.auditAll}</button>}
      </p>
      <ul class="jobs">{jobs.value.map((job) => <JobView key={job.id} job={job} />)}</ul>
      {!jobs.value.length && <p class="soft">{words.noJobs}</p>}
    </section>
    <section class="card" aria-labelledby="drift-heading">
      <h2 id="drift-heading">{words.drift}</h2>
      {drift.value && <Drift now={drift.value} />}
    </section>
  </main>;
}
