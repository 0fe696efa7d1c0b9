// Photos: their bytes, kept in this browser's own storage by their digest, and what is drawn of them.

export interface Photo { digest: string; name: string; blob: Blob; thumbnail: string }
/** A photo at the size at which it is drawn; `scale` is drawn pixels per pixel of the photo. */
export interface Picture { bitmap: ImageBitmap; scale: number }

const LONGEST = 1600, THUMBNAIL = 96, KEPT = 100;

/** A digest of a photo's bytes. Pages without TLS have no SHA-256 of the browser's. */
export async function digestOf(blob: Blob): Promise<string> {
  const bytes = await blob.arrayBuffer();
  if (crypto.subtle) {
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return [...hash.slice(0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }
  let [a, b] = [0xdeadbeef, 0x41c6ce57];  // cyrb53: no secret, only a name
  for (const byte of new Uint8Array(bytes)) {
    a = Math.imul(a ^ byte, 2654435761);
    b = Math.imul(b ^ byte, 1597334677);
  }
  return [a, b].map((part) => (part >>> 0).toString(16).padStart(8, "0")).join("");
}

/** Decodes a photo, upright, no larger than it is drawn. */
export async function decode(blob: Blob): Promise<Picture> {
  const whole = await createImageBitmap(blob, { imageOrientation: "from-image" });
  const scale = Math.min(LONGEST / Math.max(whole.width, whole.height), 1);
  if (scale === 1) return { bitmap: whole, scale };
  const width = Math.max(Math.round(whole.width * scale), 1);
  const height = Math.max(Math.round(whole.height * scale), 1);
  const bitmap = await createImageBitmap(whole, {
    resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
  whole.close();
  return { bitmap, scale };
}

/** A small picture of a photo, as an address; empty if the browser cannot decode it. */
export async function thumbnailOf(blob: Blob): Promise<string> {
  try {
    const whole = await createImageBitmap(blob, { imageOrientation: "from-image" });
    const scale = Math.min(THUMBNAIL / Math.max(whole.width, whole.height), 1);
    const canvas = new OffscreenCanvas(
      Math.max(whole.width * scale, 1), Math.max(whole.height * scale, 1));
    canvas.getContext("2d")!.drawImage(whole, 0, 0, canvas.width, canvas.height);
    whole.close();
    return URL.createObjectURL(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.8 }));
  } catch {
    return "";
  }
}

const told = <T>(ask: (take: (value: T) => void, fail: (error: Error) => void) => void) => new Promise<T>(ask);

/** The photos in a folder that is dropped, and in the folders in it, by their names: the browser has no order. */
async function photosIn(folder: FileSystemDirectoryEntry): Promise<File[]> {
  const reader = folder.createReader(), all: FileSystemEntry[] = [];
  for (;;) {
    const some = await told<FileSystemEntry[]>((take, fail) => reader.readEntries(take, fail));  // at most 100 at once
    if (!some.length) break;
    all.push(...some);
  }
  all.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  return (await Promise.all(all.map(async (entry) => {
    if (entry.isDirectory) return photosIn(entry as FileSystemDirectoryEntry);
    const file = await told<File>((take, fail) => (entry as FileSystemFileEntry).file(take, fail));
    return file.type.startsWith("image/") ? [file] : [];
  }))).flat();
}

/** The files that are dropped. They are asked for at once: the browser forgets them after the event. */
export async function dropped({ items }: DataTransfer): Promise<File[]> {
  const found = [...items].map((item): File | null | Promise<File[]> => {
    const entry = item.webkitGetAsEntry(), file = item.getAsFile();
    return entry?.isDirectory ? photosIn(entry as FileSystemDirectoryEntry).catch(() => file ? [file] : []) : file;
  });
  return (await Promise.all(found)).flat().filter((file) => file !== null);
}

const done = <T>(request: IDBRequest<T>) => new Promise<T>((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
  const opening = indexedDB.open("gradcam-studio", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("photos", { keyPath: "digest" });
  return (await done(opening)).transaction("photos", mode).objectStore("photos");
}

/** Keeps a photo for links to it; the oldest of more than `KEPT` are left out. Nothing depends on
 * it: private windows may have no storage. */
export async function keep(photo: Photo): Promise<void> {
  try {
    const photos = await store("readwrite");
    const { digest, name, blob } = photo;
    await done(photos.put({ digest, name, blob, kept: Date.now() }));
    if (await done(photos.count()) > KEPT) {
      const all = (await done(photos.getAll())) as { digest: string; kept: number }[];
      all.sort((one, other) => one.kept - other.kept);
      for (const old of all.slice(0, all.length - KEPT)) photos.delete(old.digest);
    }
  } catch { /* a link to this photo then asks for the file */ }
}

export async function kept(digest: string): Promise<File | null> {
  try {
    const found = await done((await store("readonly")).get(digest)) as
      { name: string; blob: Blob } | undefined;
    return found ? new File([found.blob], found.name, { type: found.blob.type }) : null;
  } catch {
    return null;
  }
}
