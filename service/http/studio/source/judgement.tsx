// How good the map on the screen is, beside maps that know nothing of the model.

import { useSignal, useSignalEffect } from "@preact/signals";
import * as api from "./api";
import { choice, model, parametersOf, photo, shown } from "./view";
import { words } from "./words";

const METRICS = "insertion,deletion,stability";

function Curve({ points }: { points: number[] }) {
  const path = points.map((value, at) =>
    `${((100 * at) / (points.length - 1)).toFixed(1)},${(31 - 30 * value).toFixed(1)}`).join(" ");
  return <svg class="curve" viewBox="0 0 100 32" preserveAspectRatio="none" aria-hidden="true">
    <polyline points={path} fill="none" stroke="currentColor" vector-effect="non-scaling-stroke" />
  </svg>;
}

export function Judgement() {
  const scores = useSignal<Record<string, api.Score> | null>(null), problem = useSignal("");
  const step = useSignal<api.Step | null>(null), asking = useSignal<AbortController | null>(null);
  useSignalEffect(() => {  // scores belong to one map
    void shown.value;
    asking.peek()?.abort();
    [scores.value, problem.value, step.value, asking.value] = [null, "", null, null];
  });
  const made = shown.value, of = photo.value;
  if (!made || !of || model.value?.kind !== "classes") return null;
  const measure = async () => {
    const mine = (asking.value = new AbortController());
    const path = api.explainPath(choice.value.model, { ...parametersOf(choice.value), metrics: METRICS })
      .replace(":explain?", ":evaluate?");
    try {
      const told = await api.stream<api.Evaluation>(path, of.blob, mine.signal,
        (each) => { if (!mine.signal.aborted) step.value = each; });
      if (!mine.signal.aborted) scores.value = told.scores;
    } catch (error) {
      if (!mine.signal.aborted) problem.value = error instanceof Error ? error.message : String(error);
    }
    if (!mine.signal.aborted) [step.value, asking.value] = [null, null];
  };
  return <section class="card" aria-labelledby="judge-heading">
    <h2 id="judge-heading">{words.judge}</h2>
    {!scores.value && <p class="soft">{words.judgeHint}</p>}
    {!scores.value && !asking.value &&
      <button type="button" id="judge" onClick={() => void measure()}>{words.judgeNow}</button>}
    {step.value && <p role="status"><progress value={step.value.done} max={step.value.total}
      aria-label={words.judge} /> {words.passes(step.value.done, step.value.total)}</p>}
    {problem.value && <p class="warning">{problem.value}</p>}
    {scores.value && <table id="scores">
      <thead><tr><th>{words.metric}</th><th>{words.value}</th><th>{words.chance}</th><th /></tr></thead>
      <tbody>{Object.entries(scores.value).map(([name, score]) => {
        const curve = score.details.curve, chance = score.baselines.random;
        return <tr key={name}>
          <th scope="row" title={score.convention}>{name}<br /><small>{words.better[score.better]}</small></th>
          <td>{score.value?.toFixed(3) ?? "–"}</td>
          <td>{chance?.toFixed(3) ?? "–"}</td>
          <td>{Array.isArray(curve) && <Curve points={curve} />}
            <small>{score.verdict ?? score.warning}</small></td>
        </tr>;
      })}</tbody>
    </table>}
  </section>;
}
