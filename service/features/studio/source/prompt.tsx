// Words of one's own, for a model that takes them: what in the photo fits them.

import { computed, signal, useSignalEffect } from "@preact/signals";
import { NOTHING, choice, choose, model, photo, shown, wordsProblem } from "./view";
import { words } from "./words";

const LONGEST = 1000;
/** What the service says of words that are far from everything that the model knows. */
const FAR = "names nothing that the model knows";
/** What is typed, and not asked yet. */
const text = signal(""), minus = signal("");
/** What is asked: whatever else is chosen leaves what is typed. */
const asked = [computed(() => choice.value.text ?? ""), computed(() => choice.value.minusText ?? "")] as const;

export function Prompt() {
  useSignalEffect(() => {
    [text.value, minus.value] = [asked[0].value, asked[1].value];
  });
  if (!model.value?.takes_text || !photo.value) return null;
  const made = shown.value?.explanation, target = made?.target;
  const why = wordsProblem.value || (target?.text && made?.warnings.find((each) => each.includes(FAR))) || "";
  return <section class="card" aria-labelledby="prompt-heading">
    <h2 id="prompt-heading">{words.prompt}</h2>
    <form onSubmit={(event) => {
      event.preventDefault();
      const wanted = text.value.trim();
      choose({ ...NOTHING, text: wanted || undefined, minusText: wanted && minus.value.trim() || undefined });
    }}>
      <div class="fields">
        <label for="prompt">{words.promptText}</label>
        <input id="prompt" type="text" maxLength={LONGEST} autocomplete="off" enterkeyhint="go"
          placeholder={words.promptExample} aria-describedby={why ? "prompt-problem" : undefined} value={text}
          onInput={(event) => { text.value = event.currentTarget.value; }} />
        <label for="minus-prompt">{words.contrast}</label>
        <input id="minus-prompt" type="text" maxLength={LONGEST} autocomplete="off" enterkeyhint="go"
          placeholder={words.promptContrast} value={minus}
          onInput={(event) => { minus.value = event.currentTarget.value; }} />
      </div>
      <p class="row"><button type="submit" id="explain-prompt">{words.promptNow}</button>
        {choice.value.text && <button type="button" class="quiet" onClick={() => choose(NOTHING)}>{words.back}</button>}
        {target?.text !== undefined && target.score !== undefined &&
          <span class="soft">{words.promptScore(target.score.toPrecision(4))}</span>}</p>
    </form>
    <p id="prompt-problem" role="alert" class="warning" hidden={!why}>{why}</p>
    <p class="soft">{words.promptHint}</p>
  </section>;
}
