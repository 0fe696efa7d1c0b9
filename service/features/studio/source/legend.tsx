// What the colours of the map mean, with their numbers.

import { useEffect, useRef } from "preact/hooks";
import { CONTOUR, colormapOf, table, type Colormap, type Look } from "./colours";
import { isBright, methodNamed, type Shown } from "./view";
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

/** What a map explains, as a caption names it; in a sentence each name is in quotes. */
export function captionOf({ explanation: { target } }: Shown, quoted = false): string {
  if (target.unit) return words.unitNamed(`${target.unit.channel}@${target.unit.layer}`);
  const name = (text: string) => quoted ? `“${text}”` : text;
  const minus = target.minus_text ?? target.minus?.label ?? target.minus?.index;
  const against = !quoted && target.against ? words.against_ : "";
  return [against, name(`${target.label ?? target.index ?? ""}`), ...(minus === undefined ? [] : [words.andNot, name(`${minus}`)])]
    .filter(Boolean).join(" ");
}

export function Legend({ look, made }: { look: Look; made: Shown }) {
  const { method, signed, target } = made.explanation, what = captionOf(made, true), against = Boolean(target.against);
  if (look.view === "photo") return null;
  const scale = words.scale(isBright(method));
  const least = String(look.threshold || CONTOUR);
  const sentence = look.view === "contour" ? signed ? words.signedContourOf(least, what, scale, against) : words.contourOf(least, scale)
    : signed ? words.signedScale(what, scale, against)
    : methodNamed(method)?.class_dependence === "none" ? words.blindScale(scale)
    : words.unsignedScale(what, scale, against);
  return <div class="legend">
    {look.view !== "contour" && <Bar name={colormapOf(look, Boolean(signed))} ticks={signed ? SIGNED : ["0", "0.5", "1"]} />}
    <span id="legend" class="soft">{sentence}</span>
  </div>;
}
