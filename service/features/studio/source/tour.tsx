// Five steps from a layer's output to a map that was checked, done on the photo that is shown.

import { untracked, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ask } from "./inside";
import { measure } from "./judgement";
import { NOTHING, choose, photo, show, shown, tour } from "./view";
import { words } from "./words";

/** What each step speaks of; the style sheet outlines it by its place in this list. */
const PLACES = ["section:has(#inside-heading)", "section:has(#inside-heading)", ".stage", ".stage", "section:has(#judge-heading)"];

/** What each step does on the page. */
const ACTIONS: (() => void)[] = [
  () => { choose({ ...NOTHING, method: "gradcam", layer: "auto", against: false, signed: false }); void ask("activation"); },
  () => void ask("gradient"),
  () => show({ view: "heat", threshold: 0 }),
  () => show({ view: "overlay", opacity: "heat" }),
  () => void measure(),
];

/** Pixels between the card and what it speaks of. */
const GAP = 16;
/** What a reader does who looks elsewhere. */
const MOVES = ["wheel", "touchmove", "keydown", "pointerdown"];
let acted = 0;

export function go(step: number): void {
  acted = 0;
  tour.value = step;
}

const focusOn = (id: string) => document.getElementById(id)?.focus({ preventScroll: true });

/** Ends the tour; the focus goes back to where it began. */
function leave(): void {
  go(0);
  focusOn("tour");
}

export function Tour() {
  useSignalEffect(() => {  // the first step may wait for the first map
    const step = tour.value;
    if (!shown.value || acted === step) return;
    acted = step;
    untracked(() => ACTIONS[step - 1]?.());
  });
  const at = tour.value, step = words.tourSteps[at - 1], ready = Boolean(step && photo.value && shown.value);
  const card = useRef<HTMLElement>(null);
  useEffect(() => {  // what it speaks of stands below the card, which stays in sight; the focus stays where it is
    const place = ready && document.querySelector<HTMLElement>(PLACES[at - 1]!);
    if (!place) return undefined;
    const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
    // Also when it grows, because what the step asks for has come; but not once the reader moves the page.
    const grown = new ResizeObserver(() => {
      place.style.scrollMarginTop = `${(card.current?.offsetHeight ?? 0) + GAP}px`;
      place.scrollIntoView({ block: "start", behavior });
    });
    const leaveAlone = () => grown.disconnect();
    grown.observe(place);
    for (const name of MOVES) addEventListener(name, leaveAlone, { once: true, passive: true });
    return () => {
      grown.disconnect();
      for (const name of MOVES) removeEventListener(name, leaveAlone);
    };
  }, [at, ready]);
  if (!step || !photo.value || !shown.value) return null;
  const last = words.tourSteps.length, [title, text] = step;
  return <section ref={card} class="card tour" aria-labelledby="tour-heading" aria-live="polite">
    <h2 id="tour-heading">{words.tourAt(at, last, title)}</h2>
    <p>{text}</p>
    <p class="row">
      <button type="button" disabled={at === 1} onClick={() => {
        go(at - 1);
        if (at === 2) focusOn("next");  // this button can do nothing then
      }}>{words.previous}</button>
      <button type="button" id="next" onClick={() => at === last ? leave() : go(at + 1)}>
        {at === last ? words.end : words.next}</button>
      {at < last && <button type="button" class="quiet" onClick={leave}>{words.end}</button>}
    </p>
  </section>;
}
