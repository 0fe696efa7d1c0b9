// Arrays of a NumPy file (.npz), which is a ZIP of .npy files.

export interface Values { shape: number[]; at: (...place: number[]) => number }

const END = 0x06054b50, STORED = 0, NPY_HEADER = 10;

/** The numbers of the array whose name ends so; null if there is none. */
export async function arrayOf(file: ArrayBuffer, ending: string): Promise<Values | null> {
  const view = new DataView(file), read = new TextDecoder();
  let end = file.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== END) end--;
  let entry = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    const [name, extra, comment] = [28, 30, 32].map((at) => view.getUint16(entry + at, true)) as [number, number, number];
    if (read.decode(new Uint8Array(file, entry + 46, name)).endsWith(`${ending}.npy`)) {
      const packed = view.getUint32(entry + 20, true), local = view.getUint32(entry + 42, true);
      const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
      const bytes = new Blob([new Uint8Array(file, start, packed)]);
      return numbersOf(view.getUint16(entry + 10, true) === STORED ? await bytes.arrayBuffer()
        : await new Response(bytes.stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer());
    }
    entry += 46 + name + extra + comment;
  }
  return null;
}

function numbersOf(file: ArrayBuffer): Values {
  const length = new DataView(file).getUint16(8, true), text = new TextDecoder().decode(new Uint8Array(file, NPY_HEADER, length));
  const shape = (/'shape': \(([^)]*)\)/.exec(text)?.[1] ?? "").split(",").filter((each) => each.trim()).map(Number);
  const values = new Float32Array(file, NPY_HEADER + length), fortran = text.includes("'fortran_order': True");
  const strides: number[] = [];
  let size = 1;
  for (const axis of fortran ? shape.keys() : [...shape.keys()].reverse()) {
    strides[axis] = size;
    size *= shape[axis]!;
  }
  return { shape, at: (...place) => values[place.reduce((sum, n, axis) => sum + n * strides[axis]!, 0)]! };
}
