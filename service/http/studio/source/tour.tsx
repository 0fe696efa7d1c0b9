// Five steps from a layer's output to a map that was checked, done on the photo that is shown.

import { signal, untracked, useSignalEffect } from "@preact/signals";
import { ask } from "./inside";
import { measure } from "./judgement";
import { NOTHING, choose, photo, show, shown } from "./view";
import { words } from "./words";

/** The step that is shown, from 1; 0 for none. */
export const tour = signal(0);

/** What each step does on the page. */
const ACTIONS: (() => void)[] = [
  () => { choose({ ...NOTHING, method: "gradcam", layer: "auto", against: false, signed: false }); void ask("activation"); },
  () => void ask("gradient"),
  () => show({ view: "heat", threshold: 0 }),
  () => show({ view: "overlay", opacity: "heat" }),
  () => void measure(),
];

let acted = 0;

export function go(step: number): void {
  acted = 0;
  tour.value = step;
}

export function Tour() {
  useSignalEffect(() => {  // the first step may wait for the first map
    const step = tour.value;
    if (!shown.value || acted === step) return;
    acted = step;
    untracked(() => ACTIONS[step - 1]?.());
  });
  const at = tour.value, step = words.tourSteps[at - 1];
  if (!step || !photo.value || !shown.value) return null;
  const last = words.tourSteps.length, [title, text] = step;
  return <section class="card tour" aria-labelledby="tour-heading" aria-live="polite">
    <h2 id="tour-heading">{words.tourAt(at, last, title)}</h2>
    <p>{text}</p>
    <p class="row">
      <button type="button" disabled={at === 1} onClick={() => go(at - 1)}>{words.previous}</button>
      <button type="button" id="next" onClick={() => go(at === last ? 0 : at + 1)}>
        {at === last ? words.end : words.next}</button>
      {at < last && <button type="button" class="quiet" onClick={() => go(0)}>{words.end}</button>}
    </p>
  </section>;
}
