// The service's colour maps, and a heat in their colours.

import tables from "./colormaps.json";
import type { Heat } from "./smallmap";

export type View = "overlay" | "heat" | "contour" | "photo";
export type Colormap = keyof typeof tables;
/** How a map is drawn; without a colour map, the map's own. The opacity may follow the heat. */
export interface Look { view: View; opacity: number | "heat"; threshold: number; colormap: Colormap | "";
  /** Whether a map is scaled by its 99th percentile; undefined: maps of pixels are. */
  bright?: boolean }

export const colormaps = Object.keys(tables) as Colormap[];
/** The opacity of the hottest place if the opacity follows the heat (cam/drawing/overlay.py). */
const HOTTEST = 0.85;
/** The opacity of a look as a number; one that follows the heat is half. */
export const levelOf = ({ opacity }: Look) => opacity === "heat" ? 0.5 : opacity;
const LINE = [255, 220, 0] as const;

const decoded = new Map<Colormap, Uint8Array>();

/** The 256 colours of a colour map, as red, green and blue. */
export function table(name: Colormap): Uint8Array {
  let colours = decoded.get(name);
  if (!colours) {
    colours = Uint8Array.from(atob(tables[name]), (letter) => letter.charCodeAt(0));
    decoded.set(name, colours);
  }
  return colours;
}

/** The colour map of a map for which none is chosen, on the page and by the service. The page's are
 * perceptually uniform: equal steps of the heat look equal. Signed maps have a neutral middle. */
export const USUAL: Colormap = "inferno", USUAL_SIGNED: Colormap = "coolwarm", SERVICE: Colormap = "turbo";
/** The colour map that a look means for a map. */
export const colormapOf = (look: Look, signed: boolean) => look.colormap || (signed ? USUAL_SIGNED : USUAL);
/** The threshold of a contour for which none is chosen. */
export const CONTOUR = 0.5;

/** The colours in which a look draws 256 shades of heat, as red, green, blue and opacity. */
export function shadesOf(look: Look, signed: boolean): Uint8ClampedArray {
  const colours = table(colormapOf(look, signed)), bytes = new Uint8ClampedArray(4 * 256);
  const opacity = look.view === "heat" ? 1 : look.opacity;
  for (let shade = 0; shade < 256; shade++) {
    const strength = signed ? Math.abs(shade - 127.5) / 127.5 : shade / 255;
    const alpha = Math.round(255 * (opacity === "heat" ? HOTTEST * strength : opacity));
    const shown = strength >= look.threshold ? alpha : 0;
    bytes.set([colours[3 * shade]!, colours[3 * shade + 1]!, colours[3 * shade + 2]!, shown], 4 * shade);
  }
  return bytes;
}

/** Draws a heat in its colours, transparent where nothing is to be seen of it. */
export function paint(heat: Heat, look: Look, image: ImageData): void {
  const pixels = new Uint32Array(image.data.buffer).fill(0);
  if (look.view === "photo") return;
  if (look.view === "contour") return outline(heat, look, image);
  const shades = new Uint32Array(shadesOf(look, heat.signed).buffer);
  const { left, top, width, height } = heat.region;
  for (let y = top; y < top + height; y++) {
    const row = y * image.width;
    for (let x = left; x < left + width; x++) pixels[row + x] = shades[heat.gray[row + x]!]!;
  }
}

/** Draws lines around what is at or above the threshold. */
function outline(heat: Heat, look: Look, image: ImageData): void {
  const { width, height } = image;
  const least = Math.max(look.threshold || CONTOUR, 1 / 255);
  const isHot = (x: number, y: number) => {
    if (x < 0 || y < 0 || x >= width || y >= height) return false;
    const shade = heat.gray[y * width + x]!;
    return (heat.signed ? (shade - 127.5) / 127.5 : shade / 255) >= least;
  };
  const reach = Math.max(Math.round(Math.min(width, height) / 220), 1);
  for (let y = heat.region.top; y < heat.region.top + heat.region.height; y++) {
    for (let x = heat.region.left; x < heat.region.left + heat.region.width; x++) {
      if (!isHot(x, y)) continue;
      if (isHot(x - 1, y) && isHot(x + 1, y) && isHot(x, y - 1) && isHot(x, y + 1)) continue;
      for (let v = Math.max(y - reach, 0); v <= Math.min(y + reach, height - 1); v++) {
        for (let u = Math.max(x - reach, 0); u <= Math.min(x + reach, width - 1); u++) {
          image.data.set([...LINE, 255], 4 * (v * width + u));
        }
      }
    }
  }
}
