// A divider over two pictures of one size: it is dragged, or moved by the arrow keys. Nothing moves by itself.

import type { Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { words } from "./words";

const STEP = 2, FAR = 10;
export const MIDDLE = 50;

/** Cuts the upper picture off at the divider: it is seen at the left. */
export const cutAt = (percent: number) => ({ clipPath: `inset(0 ${100 - percent}% 0 0)` });

/** The divider; `at` is where it stands, in percent of the width, between what is at the left and at the right. */
export function Divider({ at, left, right }: { at: Signal<number>; left: string; right: string }) {
  const handle = useRef<HTMLDivElement>(null);
  const put = (percent: number) => { at.value = Math.round(Math.min(Math.max(percent, 0), 100)); };
  const drag = (event: PointerEvent) => {
    if (!handle.current!.hasPointerCapture(event.pointerId)) return;
    const area = handle.current!.parentElement!.getBoundingClientRect();
    put((100 * (event.clientX - area.left)) / area.width);
  };
  const press = (event: KeyboardEvent) => {
    const by = event.shiftKey ? FAR : STEP;
    const to = { ArrowLeft: at.value - by, ArrowDown: at.value - by, ArrowRight: at.value + by, ArrowUp: at.value + by,
      PageDown: at.value - FAR, PageUp: at.value + FAR, Home: 0, End: 100 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    put(to);
  };
  return <div ref={handle} class="divider" role="slider" tabIndex={0} aria-orientation="horizontal"
    aria-label={words.divider(left, right)} aria-valuemin={0} aria-valuemax={100} aria-valuenow={at.value}
    aria-valuetext={words.dividerAt(at.value, left)} style={{ left: `${at.value}%` }} onKeyDown={press}
    onPointerDown={(event) => { event.currentTarget.setPointerCapture(event.pointerId); }} onPointerMove={drag} />;
}
