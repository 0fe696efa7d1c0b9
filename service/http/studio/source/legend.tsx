// What the colours of the map mean, with their numbers.

import { useEffect, useRef } from "preact/hooks";
import { CONTOUR, colormapOf, table, type Colormap, type Look } from "./colours";
import { choice, isBright, methodNamed, type Shown } from "./view";
import { words } from "./words";

export const SIGNED = ["−1", "0", "1"] as const;

/** The colours of a map from its least to its most, with numbers. */
export function Bar({ name, ticks }: { name: Colormap; ticks: readonly string[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const image = new ImageData(256, 1), colours = table(name);
    for (let n = 0; n < 256; n++) image.data.set([...colours.slice(3 * n, 3 * n + 3), 255], 4 * n);
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [name]);
  return <span class="bar">
    <canvas ref={canvas} width={256} height={1} aria-hidden="true" />
    <span class="ticks">{ticks.map((tick) => <span key={tick}>{tick}</span>)}</span>
  </span>;
}

/** What the map explains, as the sentence below the colours names it. */
function explainedBy({ explanation: { target } }: Shown): string {
  if (choice.value.unit) return words.unitNamed(choice.value.unit);
  const minus = target.minus_text ?? target.minus?.label ?? target.minus?.index;
  return words.targetNamed(`${target.label ?? target.index ?? ""}`, minus === undefined ? undefined : `${minus}`);
}

export function Legend({ look, made }: { look: Look; made: Shown }) {
  const { method, signed, target: { against } } = made.explanation, what = explainedBy(made);
  if (look.view === "photo") return null;
  const scale = words.scale(isBright(method));
  const sentence = look.view === "contour" ? words.contourOf(String(look.threshold || CONTOUR), scale)
    : signed ? words.signedScale(what, scale)
    : methodNamed(method)?.class_dependence === "none" ? words.blindScale(scale)
    : words.unsignedScale(what, scale, Boolean(against));
  return <div class="legend">
    {look.view !== "contour" && <Bar name={colormapOf(look, Boolean(signed))} ticks={signed ? SIGNED : ["0", "0.5", "1"]} />}
    <span id="legend" class="soft">{sentence}</span>
  </div>;
}
