// What the colours of the map mean, with their numbers.

import { useEffect, useRef } from "preact/hooks";
import { CONTOUR, shadesOf, type Look } from "./colours";
import { isBright, methodNamed, type Shown } from "./view";
import { words } from "./words";

export const SIGNED = ["−1", "0", "1"] as const;

/** The ground below the bar's colours, which stands for the photo: its two greys, and pixels of a square's side. */
const GROUND = ["#a0a0a0", "#606060"] as const, SQUARE = 8;
const LONG = 256, HIGH = 2 * SQUARE;

/** The colours of a map from its least to its most as they look on the picture, with numbers. */
export function Bar({ look, signed, ticks }: { look: Look; signed: boolean; ticks: readonly string[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current!.getContext("2d")!, image = new ImageData(LONG, HIGH);
    for (let n = 0; n < (LONG * HIGH) / SQUARE ** 2; n++) {
      const row = n % 2, column = (n - row) / 2;
      context.fillStyle = GROUND[(row + column) % 2]!;
      context.fillRect(column * SQUARE, row * SQUARE, SQUARE, SQUARE);
    }
    for (let row = 0; row < HIGH; row++) image.data.set(shadesOf(look, signed), 4 * LONG * row);
    const colours = new OffscreenCanvas(LONG, HIGH);
    colours.getContext("2d")!.putImageData(image, 0, 0);
    context.drawImage(colours, 0, 0);
  }, [look, signed]);
  return <span class="bar">
    <canvas ref={canvas} width={LONG} height={HIGH} aria-hidden="true" />
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
    {look.view !== "contour" && <Bar look={look} signed={Boolean(signed)} ticks={signed ? SIGNED : ["0", "0.5", "1"]} />}
    <span class="soft meaning"><span id="legend">{sentence}</span>
      {look.view === "overlay" && <> <span id="ground">{words.ground}</span></>}</span>
  </div>;
}
