// A question to a model that answers, and the words of its answer: each has a map.

import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { AnswerToken, AnswerWord } from "./api";
import { answer, busy, chosen, photo, phrase, query, said, span, stop, type Answered } from "./view";
import { words } from "./words";

type Method = keyof typeof words.answerMethods;
const methods = Object.keys(words.answerMethods) as Method[];
/** What is typed, and not asked yet. */
const question = signal(query.value.question ?? ""), given = signal(query.value.answer ?? "");

export function stepAnswerMethod(): void {
  query.value = { ...query.value, method: methods[(methods.indexOf(query.value.method as Method) + 1) % methods.length]! };
}

const share = (value: number) => value < 0.001 ? "< 0.001" : value.toFixed(3);
const nats = (value: number) => (Math.abs(value) < 0.05 ? 0 : value).toFixed(1);
const named = (text: string) => text.trim() || JSON.stringify(text);

/** Chooses a word; with others, all from the one that was chosen before to this one. */
function take(at: number, all: AnswerWord[], further: boolean): void {
  const [first, last] = span.value ?? [at, at];
  const from = further ? Math.min(first, at) : at, to = further ? Math.max(at < first ? last : at, at) : at;
  // The service's phrase has the tokens between its words, too, whose maps are not here.
  const joined = all.slice(from, to).every((word, n) => word.first_token + word.tokens === all[from + n + 1]!.first_token);
  chosen.value = joined ? [from, to] : [at, at];
}

function Words({ made: { answer: { words: all, tokens } } }: { made: Answered }) {
  const group = useRef<HTMLDivElement>(null), [first, last] = span.value!;
  const move = (event: KeyboardEvent) => {
    const at = [...group.current!.querySelectorAll("button")].indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (!all[to]) return;
    take(to, all, event.shiftKey);
    group.current!.querySelectorAll("button")[to]!.focus();
  };
  const text = (from: number, to: number) => tokens.slice(from, to).map((token) => token.text).join("");
  return <div class="answer" id="words" ref={group} role="group" aria-label={words.answerWords} onKeyDown={move}>
    {all.map((word, at) => {
      const before = all[at - 1], stop = word.first_token + word.tokens;
      const since = text(before ? before.first_token + before.tokens : 0, stop);
      const space = since.slice(0, since.lastIndexOf(word.text));
      return <span key={at}>{space.includes("\n") ? <br /> : space && " "}
        <button type="button" class={word.from_language ? "language" : ""}
          aria-pressed={at >= first && at <= last} tabIndex={at === first ? 0 : -1}
          aria-label={words.toldOf(word.text, share(word.probability), word.evidence === undefined ? undefined
            : nats(word.evidence), Boolean(word.from_language))}
          onClick={(event) => take(at, all, event.shiftKey)}>
          <span class="said">{word.text}</span>
          <small>{share(word.probability)}{word.evidence !== undefined && ` · ${nats(word.evidence)}`}</small>
          {word.from_language && <small>{words.fromLanguage}</small>}
        </button></span>;
    })}
  </div>;
}

function Alternatives({ token }: { token: AnswerToken }) {
  return <tr><th scope="row">{named(token.text)}<br /><small>{share(token.probability)}</small></th>
    <td><ol class="alternatives">{token.alternatives.map(({ text, probability }, at) => <li key={at}>
      <span class="label">{named(text)}</span> <span class="number">{share(probability)}</span></li>)}</ol></td></tr>;
}

/** The word or phrase that is chosen. */
function Chosen({ made }: { made: Answered }) {
  const word = phrase.value?.word;
  if (!word) return null;
  const tokens = made.answer.tokens.slice(word.first_token, word.first_token + word.tokens);
  return <>
    <h3 id="word">“{word.text}”</h3>
    <p id="evidence">{words.probability(share(word.probability))}{" "}
      {word.evidence !== undefined && words.evidence(nats(word.evidence))}{" "}
      {word.from_language && <strong class="warning">{words.saidFromLanguage}</strong>}</p>
    <table id="alternatives">
      <thead><tr><th scope="col">{words.token}</th><th scope="col">{words.mostProbable}</th></tr></thead>
      <tbody>{tokens.map((token, at) => <Alternatives key={at} token={token} />)}</tbody>
    </table>
  </>;
}

export function Asking() {
  const { method } = query.value, made = answer.value, text = made?.answer.text ?? said.value;
  return <section class="card" aria-labelledby="asking-heading">
    <h2 id="asking-heading">{words.asking}</h2>
    <form onSubmit={(event) => {
      event.preventDefault();
      query.value = { method, question: question.value, answer: given.value };
    }}>
      <div class="fields">
        <label for="question">{words.question}</label>
        <input id="question" type="text" maxLength={1000} autocomplete="off" enterkeyhint="go"
          placeholder={words.questionHint} value={question}
          onInput={(event) => { question.value = event.currentTarget.value; }} />
        <label for="given">{words.given}</label>
        <input id="given" type="text" maxLength={1200} autocomplete="off" placeholder={words.givenHint} value={given}
          onInput={(event) => { given.value = event.currentTarget.value; }} />
        <label for="word-method">{words.method}</label>
        <select id="word-method" value={method} aria-describedby="word-method-summary"
          onChange={(event) => { query.value = { ...query.value, method: event.currentTarget.value }; }}>
          {methods.map((name) => <option key={name} value={name} title={words.answerMethods[name]}>{name}</option>)}
        </select>
      </div>
      <p class="soft" id="word-method-summary">{words.answerMethods[method as Method]}.</p>
      <p class="row"><button type="submit" id="ask">{words.ask}</button>
        <button type="button" id="stop" disabled={!busy.value || !photo.value} onClick={() => {
          stop();
          document.getElementById("question")?.focus();
        }}>{words.stop}</button>
        {busy.value && photo.value && <span class="soft">{words.answering}</span>}
        {!photo.value && <span class="soft">{words.askNeedsPhoto}</span>}</p>
    </form>
    {/* A reader of the screen hears the answer once, when it is whole. */}
    <p id="answer" class={made?.answer.words.length ? "hidden" : "answer"} aria-live="polite" aria-busy={busy.value}>{text}</p>
    {made && span.value && <>
      <Words made={made} />
      <p class="soft">{words.wordsHint}</p>
      <Chosen made={made} />
    </>}
  </section>;
}
