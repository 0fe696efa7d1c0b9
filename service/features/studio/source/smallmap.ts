// A layer's small map on the pixels of a picture: the same numbers as the service's pictures have
// (cam/drawing/placement.py: bilinear, half-pixel centres, edges held; then scaled to 0 … 1).

import type { Box, Explanation } from "./api";

export interface Region { left: number; top: number; width: number; height: number }

/** A map on a picture's pixels, as 0 … 255; of a signed map, 127.5 is 0. */
export interface Heat {
  gray: Uint8ClampedArray; region: Region; signed: boolean; flat: boolean;
  /** The region's numbers, as the method gave them. */
  inside: Float32Array;
}

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

export function numbers({ data }: Explanation["heatmap"]): Float32Array {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

const BINS = 65536;

/** The 99th percentile of sizes from 0 to `most`, or `most` where fewer are above 0: what
 * `normalize=percentile` scales by. */
function capOf(values: Float32Array, sizeOf: (value: number) => number, most: number): number {
  const counts = new Uint32Array(BINS + 1);
  for (const value of values) counts[Math.floor((sizeOf(value) / most) * BINS)]!++;
  let left = Math.ceil(0.99 * (values.length - 1)) + 1, bin = 0;
  while ((left -= counts[bin]!) > 0) bin++;
  return bin ? ((bin + 0.5) / BINS) * most : most;
}

/** Puts a map on a picture of `width` × `height` pixels, of which it covers the box. A bright map
 * is scaled by its 99th percentile. */
export function place(values: Float32Array, [rows, columns]: [number, number], box: Box,
    width: number, height: number, signed: boolean, bright = false): Heat {
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
  const flat = signed ? Math.max(high, -low) <= 0 : high <= low;
  let most = signed ? Math.max(high, -low) : high - low;
  if (bright && !flat) most = capOf(inside, signed ? Math.abs : (value) => value - low, most);
  const scale = flat ? 0 : (signed ? 127.5 : 255) / most;
  const shift = signed ? 127.5 : flat ? 0 : -low * scale;
  const gray = new Uint8ClampedArray(width * height);  // rounds, and clips at 0 and 255
  for (let m = 0; m < tall; m++) {
    const to = (y.first + m) * width + x.first;
    for (let n = 0; n < wide; n++) gray[to + n] = inside[m * wide + n]! * scale + shift;
  }
  const region = { left: x.first, top: y.first, width: wide, height: tall };
  return { gray, region, signed, flat, inside };
}

/** What one map has more than another on the same pixels: a signed heat. */
export function difference(one: Heat, other: Heat): Heat {
  const gray = new Uint8ClampedArray(one.gray.length);
  let flat = true;
  for (let n = 0; n < gray.length; n++) {
    const more = one.gray[n]! - other.gray[n]!;
    flat &&= more === 0;
    gray[n] = 127.5 + more / 2;
  }
  const { width, height } = one.region;
  const whole = one.region.left === other.region.left && one.region.top === other.region.top &&
    width === other.region.width && height === other.region.height;
  const region = whole ? one.region : union(one.region, other.region);
  return { gray, region, signed: true, flat, inside: new Float32Array() };
}

function union(one: Region, other: Region): Region {
  const left = Math.min(one.left, other.left), top = Math.min(one.top, other.top);
  const right = Math.max(one.left + one.width, other.left + other.width);
  const bottom = Math.max(one.top + one.height, other.top + other.height);
  return { left, top, width: right - left, height: bottom - top };
}

/** The rank of each number, from 0; equal numbers share the mean of their ranks. */
function ranks(values: ArrayLike<number>): Float64Array {
  const order = Uint32Array.from({ length: values.length }, (_, n) => n)
    .sort((a, b) => values[a]! - values[b]!);
  const found = new Float64Array(values.length);
  for (let from = 0, to = 0; from < order.length; from = to) {
    while (to < order.length && values[order[to]!] === values[order[from]!]) to++;
    for (let n = from; n < to; n++) found[order[n]!] = (from + to - 1) / 2;
  }
  return found;
}

/** Spearman's rank correlation; NaN if one of them is the same everywhere. */
export function spearman(one: ArrayLike<number>, other: ArrayLike<number>): number {
  const a = ranks(one), b = ranks(other), middle = (a.length - 1) / 2;
  let product = 0, first = 0, second = 0;
  for (let n = 0; n < a.length; n++) {
    const x = a[n]! - middle, y = b[n]! - middle;
    product += x * y;
    first += x * x;
    second += y * y;
  }
  return product / Math.sqrt(first * second);
}

/** The share of a heat that lies in a box of the picture, and the box's share of what was seen. */
export function shareIn({ gray, region, signed }: Heat, box: Box, width: number):
    { heat: number; area: number } {
  let inside = 0, all = 0, cells = 0;
  for (let y = region.top; y < region.top + region.height; y++) {
    for (let x = region.left; x < region.left + region.width; x++) {
      const value = signed ? Math.abs(gray[y * width + x]! - 127.5) : gray[y * width + x]!;
      all += value;
      if (x + 0.5 < box.left || x + 0.5 > box.right || y + 0.5 < box.top || y + 0.5 > box.bottom) continue;
      inside += value;
      cells++;
    }
  }
  return { heat: all ? inside / all : 0, area: cells / (region.width * region.height) };
}

/** A NumPy file of a map. */
export function npy(values: Float32Array, [rows, columns]: [number, number]): Blob {
  const told = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${columns}), }`;
  const header = told.padEnd(Math.ceil((told.length + 11) / 64) * 64 - 11) + "\n";
  const start = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0,
    header.length & 255, header.length >> 8]);
  return new Blob([start, header, new Float32Array(values)]);
}
