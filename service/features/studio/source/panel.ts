// Several maps as one picture, with captions: what is on the screen, to be kept or shown to others.

import { captionOf } from "./legend";
import { save } from "./takealong";
import { method, model, photo, shown } from "./view";
import { words } from "./words";

const WIDE = 360, GAP = 16, LINE = 20, FONT = "15px system-ui, sans-serif";

/** The lines into which a text is broken so that none is wider than `width`. */
function broken(context: CanvasRenderingContext2D, text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/\s+/)) {
    const longer = `${lines.at(-1)} ${word}`;
    if (lines.length && context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** What a comparison is of. Those that compare methods or layers name them below each map. */
function title(): string[] {
  const made = shown.value;
  if (!made) return [photo.value!.name];
  const { layer } = made.explanation;
  return [words.panelOf(photo.value!.name, captionOf(made)),
    words.panelBy(model.value!.name, method.value?.name ?? made.explanation.method, layer, new Date().toLocaleDateString("sv"))];
}

/** Saves the maps of a section, `columns` in a row. A map is a canvas with its caption in `data-caption`. */
export async function savePanel(section: HTMLElement, name: string, columns: number): Promise<void> {
  const maps = [...section.querySelectorAll<HTMLCanvasElement>("canvas[data-caption]")];
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d")!;
  context.font = FONT;
  const wide = Math.min(columns, maps.length), rows = Math.ceil(maps.length / wide);
  const width = Math.max(wide * (WIDE + GAP) + GAP, 2 * WIDE), heads = title().flatMap((line) => broken(context, line, width - 2 * GAP));
  const captions = maps.map((map) => broken(context, map.dataset.caption!, WIDE));
  const pictured = Math.max(...maps.map((map) => (WIDE * map.height) / map.width));
  const row = pictured + GAP + LINE * Math.max(...captions.map(({ length }) => length));
  const top = GAP + LINE * heads.length + GAP / 2;
  Object.assign(canvas, { width, height: Math.ceil(top + rows * row) });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  Object.assign(context, { font: FONT, fillStyle: "#1d2129", textBaseline: "top" });
  heads.forEach((line, n) => context.fillText(line, GAP, GAP + n * LINE));
  maps.forEach((map, n) => {
    const x = GAP + (n % wide) * (WIDE + GAP), y = top + Math.floor(n / wide) * row;
    context.drawImage(map, x, y, WIDE, (WIDE * map.height) / map.width);
    captions[n]!.forEach((line, m) => context.fillText(line, x, y + pictured + 4 + m * LINE));
  });
  const blob = await new Promise<Blob | null>((resolve) => { canvas.toBlob(resolve, "image/png"); });
  if (blob) save(blob, `${photo.value!.name.replace(/\.[^.]*$/, "")}-${name}.png`);
}
