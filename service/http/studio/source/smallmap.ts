// A layer's small map on the pixels of a picture: the same numbers as the service's pictures have
// (cam/drawing/heatmap.py: bilinear, half-pixel centres, edges held; then scaled to 0 … 1).

import type { Box, Explanation } from "./api";

export interface Region { left: number; top: number; width: number; height: number }

/** A map on a picture's pixels, as 0 … 255; of a signed map, 127.5 is 0. */
export interface Heat { gray: Uint8ClampedArray; region: Region; signed: boolean; flat: boolean }

interface Axis { first: number; lower: Int32Array; fraction: Float32Array }

/** The interpolation along one axis, on which `cells` cells lie between `start` and `stop`. */
function axis(cells: number, start: number, stop: number, pixels: number): Axis {
  const first = Math.min(Math.max(Math.ceil(start - 0.5), 0), pixels - 1);
  const last = Math.max(Math.min(Math.ceil(stop - 0.5), pixels), first + 1);
  const lower = new Int32Array(last - first), fraction = new Float32Array(last - first);
  for (let n = 0; n < last - first; n++) {
    const centre = (((first + n + 0.5 - start) / (stop - start)) * cells) - 0.5;
    const position = Math.min(Math.max(centre, 0), cells - 1);
    lower[n] = Math.min(Math.floor(position), Math.max(cells - 2, 0));
    fraction[n] = position - lower[n]!;
  }
  return { first, lower, fraction };
}

export function numbers(explanation: Explanation): Float32Array {
  const bytes = Uint8Array.from(atob(explanation.heatmap.data), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Puts a map on a picture of `width` × `height` pixels, of which it covers the box. */
export function place(values: Float32Array, [rows, columns]: [number, number], box: Box,
    width: number, height: number, signed: boolean): Heat {
  const x = axis(columns, box.left, box.right, width), y = axis(rows, box.top, box.bottom, height);
  const wide = x.lower.length, tall = y.lower.length;
  const across = new Float32Array(rows * wide);
  for (let row = 0; row < rows; row++) {
    for (let n = 0; n < wide; n++) {
      const at = row * columns + x.lower[n]!, part = x.fraction[n]!;
      across[row * wide + n] = values[at]! * (1 - part) + (part ? values[at + 1]! * part : 0);
    }
  }
  const inside = new Float32Array(tall * wide);
  let low = Infinity, high = -Infinity;
  for (let m = 0; m < tall; m++) {
    const at = y.lower[m]! * wide, part = y.fraction[m]!;
    for (let n = 0; n < wide; n++) {
      const value = across[at + n]! * (1 - part) + (part ? across[at + wide + n]! * part : 0);
      inside[m * wide + n] = value;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  const most = Math.max(high, -low), flat = signed ? most <= 0 : high <= low;
  const scale = flat ? 0 : signed ? 127.5 / most : 255 / (high - low);
  const shift = signed ? 127.5 : flat ? 0 : -low * scale;
  const gray = new Uint8ClampedArray(width * height);  // rounds, and clips at 0 and 255
  for (let m = 0; m < tall; m++) {
    const to = (y.first + m) * width + x.first;
    for (let n = 0; n < wide; n++) gray[to + n] = inside[m * wide + n]! * scale + shift;
  }
  const region = { left: x.first, top: y.first, width: wide, height: tall };
  return { gray, region, signed, flat };
}

/** A NumPy file of a map. */
export function npy(values: Float32Array, [rows, columns]: [number, number]): Blob {
  const told = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${columns}), }`;
  const header = told.padEnd(Math.ceil((told.length + 11) / 64) * 64 - 11) + "\n";
  const start = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0,
    header.length & 255, header.length >> 8]);
  return new Blob([start, header, new Float32Array(values)]);
}
