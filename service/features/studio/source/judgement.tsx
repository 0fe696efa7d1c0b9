// How good the map on the screen is, beside maps that know nothing of the model.

import { signal, useSignalEffect } from "@preact/signals";
import * as api from "./api";
import { Curve } from "./curve";
import { Film, type Metric } from "./film";
import { judgeable, busy, choice, choose, model, parametersOf, photo, shown } from "./view";
import { words } from "./words";

const METRICS = "insertion,deletion,stability";
export const scores = signal<Record<string, api.Score> | null>(null), problem = signal("");
const step = signal<api.Step | null>(null);
/** Ends the judgement that is being made; null for none. */
export const asking = signal<AbortController | null>(null);
const film = signal<Metric | null>(null);

/** Measures the map on the screen. */
export async function measure(): Promise<void> {
  const of = photo.value;
  if (!of || model.value?.kind !== "classes") return;
  const mine = (asking.value = new AbortController());
  const path = api.pathOf("evaluate", choice.value.model, { ...parametersOf(choice.value), metrics: METRICS });
  try {
    const told = await api.patiently(() => api.stream<api.Evaluation>(path, of.blob, mine.signal,
      (each) => { if (!mine.signal.aborted) step.value = each; }), mine.signal);
    if (!mine.signal.aborted) scores.value = told.scores;
  } catch (error) {
    if (!mine.signal.aborted) problem.value = api.textOf(error);
  }
  if (!mine.signal.aborted) [step.value, asking.value] = [null, null];
}

/** What the audit of the model recommends, where it has one. */
function Audited() {
  const audited = model.value?.audited, made = shown.value;
  if (!audited || !made) return null;
  const same = made.explanation.method === audited.method && made.explanation.layer === audited.layer;
  return <p>{same ? words.auditedThis : words.audited(audited.method, audited.layer)}{" "}
    {!same && <button type="button" onClick={() => choose(audited)}>{words.take_}</button>}</p>;
}

export function Judgement() {
  useSignalEffect(() => {  // scores belong to one map
    void shown.value;
    asking.peek()?.abort();
    [scores.value, problem.value, step.value, asking.value, film.value] = [null, "", null, null, null];
  });
  const made = shown.value, of = photo.value;
  if (!made || !of || !judgeable.value) return null;
  const curve = film.value && scores.value?.[film.value]?.details.curve;
  return <section class="card" aria-labelledby="judge-heading">
    <h2 id="judge-heading" tabIndex={-1}>{words.judge}</h2>
    <Audited />
    {!scores.value && <p class="soft">{words.judgeHint}</p>}
    {!scores.value && !asking.value &&
      <button type="button" id="judge" disabled={busy.value} onClick={() => void measure()}>{words.judgeNow}</button>}
    {step.value && <p role="status"><progress value={step.value.done} max={step.value.total}
      aria-label={words.judge} /> {words.passes(step.value.done, step.value.total)}</p>}
    {problem.value && <p class="warning">{problem.value}</p>}
    {scores.value && <table id="scores">
      <thead><tr><th>{words.metric}</th><th>{words.value}</th><th>{words.chance}</th>
        <th>{words.verdict}</th></tr></thead>
      <tbody>{Object.entries(scores.value).map(([name, score]) => {
        const points = score.details.curve, chance = score.baselines.random;
        return <tr key={name}>
          <th scope="row" title={score.convention}>{name}<br /><small>{words.better[score.better]}</small></th>
          <td>{score.value?.toFixed(3) ?? "–"}</td>
          <td>{chance?.toFixed(3) ?? "–"}</td>
          <td>{Array.isArray(points) && <><Curve points={points} most={Math.max(...points) || 1} />
            <button type="button" aria-pressed={film.value === name} onClick={() => {
              film.value = film.value === name ? null : name as Metric;
            }}>{words.watch(name)}</button><br /></>}
            <small>{score.verdict ?? score.warning}</small></td>
        </tr>;
      })}</tbody>
    </table>}
    {film.value && Array.isArray(curve) && <Film key={film.value} metric={film.value} curve={curve} />}
  </section>;
}
