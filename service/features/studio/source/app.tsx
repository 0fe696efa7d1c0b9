// The page: photos at the left, what one asks of them at the right.

import { batch, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Asking, stepAnswerMethod } from "./asking";
import { Classes } from "./classes";
import { Beside } from "./beside";
import { Example, Examples, sample } from "./examples";
import { Inside } from "./inside";
import { Judgement, asking, measure, scores } from "./judgement";
import { Comparison, compare } from "./comparison";
import { Looks, Settings, setMethod, stepLayer } from "./settings";
import { Stage } from "./stage";
import { TakeAlong } from "./takealong";
import { dropped } from "./photos";
import { Prompt } from "./prompt";
import { Tour, go } from "./tour";
import { Work } from "./work";
import { levelOf, type View } from "./colours";
import { NOTHING, add, answer, answers, asksForKey, busy, choice, choose, current, does, judgeable, help, item, leave, leftOut, look, method, model, note,
  photo, problem, remove, room, scrolled, select, serves, show, shown, step, strip, tour, useKey } from "./view";
import { words } from "./words";

const files = (list: FileList | null | undefined) => { if (list?.length) void add([...list]); };

function Chooser() {
  return <div class="row">
    <label class="button">{words.choose}
      <input id="file" type="file" accept="image/*" multiple class="hidden"
        onChange={({ currentTarget }) => { files(currentTarget.files); currentTarget.value = ""; }} />
    </label>
    <label class="button phone">{words.camera}
      <input type="file" accept="image/*" capture="environment" class="hidden"
        onChange={({ currentTarget }) => { files(currentTarget.files); currentTarget.value = ""; }} />
    </label>
  </div>;
}

function Invitation() {
  return <div class="invitation">
    <p class="large">{words.invitation}</p>
    <Chooser />
    <p class="soft">{words.formats}</p>
    <p>{words.samples}</p>
    <Examples />
  </div>;
}

function Strip() {
  return <div class="strip" role="group" aria-label={words.photos}>
    <Chooser />
    {strip.value.map(({ digest, name, thumbnail }) => <span key={digest} class="thumbnail">
      <button type="button" aria-pressed={digest === current.value} title={name} aria-label={name}
        onClick={() => select(digest)}>
        {thumbnail ? <img src={thumbnail} alt="" /> : <span>{name}</span>}
      </button>
      <button type="button" class="remove" aria-label={words.remove(name)}
        onClick={() => remove(digest)}>×</button>
    </span>)}
  </div>;
}

/** Goes to a part of the page; a picture that is waited for stays behind. */
const enter = (name: "look" | "work") => batch(() => { [room.value, item.value] = [name, ""]; });

/** Least probability of the first class at which nothing is said of it. */
const SURE = 0.7;

/** Whether the map has been judged, and with what result. */
function Judged() {
  if (!shown.value) return null;
  if (!judgeable.value) return <p class="soft">{words.notMeasured}</p>;
  const told = Object.entries(scores.value ?? {});
  if (told.length) {
    return <><p class="soft">{words.judged}</p>
      <ul id="judged">{told.map(([name, { verdict, warning, value }]) =>
        <li key={name}>{name}: {verdict ?? warning ?? value?.toFixed(3)}</li>)}</ul></>;
  }
  return <p>{asking.value ? words.judging : words.notJudged}{" "}
    {!asking.value && <button type="button" id="judge-it" disabled={busy.value} onClick={() => {
      document.getElementById("judge-heading")?.focus();
      void measure();
    }}>{words.judgeIt}</button>}</p>;
}

/** What a reader of the map must know before believing it. */
function doubts(of: { warnings: string[] }): string[] {
  const blind = { none: words.classBlind, weak: words.weak, full: "" }[
    method.value?.class_dependence ?? "full"];
  const all = [...(blind && !answers.value && !of.warnings.some((each) => each.includes("class")) ? [blind] : []),
    ...of.warnings];
  const [first] = shown.value?.prediction.classes ?? [], share = first?.probability ?? 1;
  if (share < SURE) all.push(words.unsure(first!.label ?? `${first!.index}`, share.toFixed(2)));
  return all;
}

/** The number of doubts about the map on the screen and whether it is judged, which lead to the card that says more. */
function Verdict() {
  const made = shown.value;
  if (!made) return null;
  const told = Object.values(scores.value ?? {}).map(({ verdict }) => verdict).filter(Boolean);
  return <a id="verdict" class="soft" href="#warnings-heading" onClick={(event) => {
    event.preventDefault();  // the address is the view's
    document.getElementById("warnings-heading")?.focus();
  }}>{words.summed(doubts(made.explanation).length, told.length ? told.join("; ") : "")}</a>;
}

function Warnings() {
  // An answer without a word has no map, and may have warnings.
  const of = shown.value?.explanation ?? answer.value?.answer;
  if (!of) return null;
  const all = doubts(of);
  return <section class="card" aria-labelledby="warnings-heading">
    <h2 id="warnings-heading" tabIndex={-1}>{words.warnings}</h2>
    {all.length ? <ul class="warnings">{all.map((each) => <li key={each}>{each}</li>)}</ul>
      : <p class="soft">{words.none}</p>}
    <Judged />
  </section>;
}

function Key() {
  const typed = useSignal("");
  if (!asksForKey.value) return null;
  return <form class="card problem" onSubmit={(event) => { event.preventDefault(); useKey(typed.value); }}>
    <p>{words.key}</p>
    <p class="row"><label>{words.keyLabel} <input id="key" type="password" autocomplete="off"
      value={typed} onInput={(event) => { typed.value = event.currentTarget.value; }} /></label>
      <button type="submit">{words.keySend}</button></p>
    <p class="soft">{words.keyNote}</p>
  </form>;
}

function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => { if (help.value) dialog.current?.showModal(); else dialog.current?.close(); }, [help.value]);
  return <dialog ref={dialog} onClose={() => leave(help)} aria-label={words.help}>
    <h2>{words.help}</h2>
    <dl>{words.keys.map(([key, text]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>)}</dl>
    <form method="dialog"><button>{words.close}</button></form>
  </dialog>;
}

function press(event: KeyboardEvent): void {
  const at = event.target as HTMLElement;
  if (at.closest(".mark") || (room.value === "work" && event.key !== "?")) return;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest("input, select, textarea, dialog")) return;
  const views = Object.keys(words.views) as View[];
  const methods = (model.value?.methods ?? []).filter(({ available }) => available);
  const actions: Record<string, () => void> = {
    "?": () => { help.value = true; },
    ArrowLeft: () => stepLayer(-1), ArrowRight: () => stepLayer(1),
    m: () => {
      if (answers.value) return stepAnswerMethod();
      const next = methods[(methods.findIndex(({ name }) => name === choice.value.method) + 1) % methods.length];
      if (next) setMethod(next.name);
    },
    v: () => show({ view: views[(views.indexOf(look.value.view) + 1) % views.length]! }),
    "[": () => show({ opacity: Math.max(levelOf(look.value) - 0.1, 0) }),
    "]": () => show({ opacity: Math.min(levelOf(look.value) + 0.1, 1) }),
    n: () => step(1), p: () => step(-1),
    c: () => void compare(),
    "/": () => document.querySelector<HTMLElement>("#search, #question")?.focus(),
  };
  const prediction = shown.value?.prediction;
  const classes = prediction?.classes ?? prediction?.values ?? prediction?.segments ?? [];
  const chosen = /^[1-9]$/.test(event.key) ? classes[Number(event.key) - 1] : undefined;
  if (chosen) choose({ ...NOTHING, target: chosen.index });
  else if (!actions[event.key]) return;
  actions[event.key]?.();
  event.preventDefault();
}

export function App() {
  const over = useSignal(false);
  useLayoutEffect(() => scrollTo(0, scrolled[room.value]), [room.value]);
  useEffect(() => {
    const listeners = {
      keydown: press,
      paste: (event: ClipboardEvent) => files(event.clipboardData?.files),
      dragover: (event: DragEvent) => {
        event.preventDefault();
        over.value = Boolean(event.dataTransfer?.types.includes("Files"));
      },
      dragleave: () => { over.value = false; },
      drop: (event: DragEvent) => {
        event.preventDefault();
        over.value = false;
        if (event.dataTransfer?.types.includes("Files")) void dropped(event.dataTransfer).then((found) => {
          if (found.length) void add(found);
          else problem.value = words.noPhotos;
        });
      },
    };
    const all = Object.entries(listeners) as [string, EventListener][];
    for (const [name, listener] of all) addEventListener(name, listener);
    return () => { for (const [name, listener] of all) removeEventListener(name, listener); };
  }, []);
  const now = model.value, asks = answers.value;
  const kept = leftOut.value.length && strip.value.length ? words.kept(strip.value.length) : "";
  const told = [...leftOut.value, kept, problem.value].filter(Boolean);
  const works = serves("/v1/jobs"), guided = does("activations") && does("evaluate");
  return <>
    <header>
      <h1>{words.title}</h1>
      <nav>
        {(["look", "work"] as const).filter((name) => name === "look" || works).map((name) => <button key={name} type="button" class="quiet"
          aria-pressed={room.value === name} onClick={() => enter(name)}>{words.rooms[name]}</button>)}{" "}
        {!asks && guided && <button type="button" class="quiet" id="tour" onClick={() => {
          enter("look");
          void (photo.value ? Promise.resolve() : sample("cat")).then(() => go(1));
        }}>{words.tour}</button>}{" "}
        <a href="docs">{words.api}</a>{" "}
        <button type="button" class="quiet" onClick={() => { help.value = true; }}>{words.help}</button></nav>
    </header>
    <Key />
    <div role="alert" id="problem" class="card problem" hidden={!told.length}>
      {told.map((each, at) => <p key={at}>{each}</p>)}</div>
    <p class="soft" id="note" role="status" hidden={!note.value}>{note.value}</p>
    {room.value === "work" && works ? <Work /> : <main class={over.value ? "over" : ""} data-tour={tour.value || undefined}>
      {!asks && guided && <Tour />}
      <div class="columns">
      <div class="left">
        {photo.value ? <><div class="card"><Looks /><Stage><Verdict /></Stage></div><Strip /><Example /></>
          : <div class="card"><Invitation /></div>}
      </div>
      {!asks && <div class="compared"><Beside /><Comparison />{does("activations") && <Inside />}</div>}
      <div class="right" aria-busy={busy.value}>
        {asks ? <Asking /> : <><Prompt />{photo.value && <Classes />}</>}
        <Settings />
        <Warnings />
        {!asks && does("evaluate") && <Judgement />}
        <TakeAlong />
      </div>
      </div>
    </main>}
    <footer class="soft" id="runs">{now &&
      words.runs(now.name, now.device, now.dtype, asks ? undefined : now.input)}</footer>
    <Help />
  </>;
}
