// The photos that come with the page, what to look at in each, and views that are ready.

import { textOf } from "./api";
import { compare } from "./comparison";
import { NOTHING, choice, choose, current, examples, methodNamed, model, photo, problem, takeExample,
  type ExampleName } from "./view";
import { words } from "./words";

/** What a view asks: classes by their names, since models number them differently. */
interface Ready { target?: string; minus?: string; against?: boolean; method?: string; compares?: "methods" | "layers" }

const VIEWS: Record<ExampleName, Ready[]> = {
  cat: [{ target: "Egyptian cat", minus: "tabby" }, { method: "refinecam" }, { compares: "methods" }],
  coffee: [{ target: "espresso", minus: "cup" }, { target: "cup" }, { compares: "layers" }],
  rocket: [{ target: "drilling platform", minus: "missile" }, { target: "missile", minus: "drilling platform" },
    { target: "missile", against: true }],
};

/** Shows an example. */
export const sample = (name: ExampleName) =>
  takeExample(name).catch((error: unknown) => { problem.value = textOf(error); });

/** What a view asks of the model that is chosen; null where that lacks a class or the method. */
function choiceOf({ target, minus, against = false, method = "gradcam" }: Ready) {
  const [wanted, other] = [target, minus].map((label) => label === undefined ? undefined : model.value?.labels.indexOf(label));
  if (model.value?.kind !== "classes" || wanted === -1 || other === -1 || !methodNamed(method)?.available) return null;
  return { ...NOTHING, target: wanted, minus: other, against, signed: false, method, layer: "auto" };
}

async function open(name: ExampleName, view: Ready): Promise<void> {
  const asked = choiceOf(view)!;
  if (examples.get(current.value ?? "") !== name) await sample(name);
  choose(asked);
  if (!view.compares) {
    requestAnimationFrame(() => document.querySelector(".stage")?.scrollIntoView({ block: "nearest" }));
    return;
  }
  void compare(view.compares === "layers");
  requestAnimationFrame(() => document.getElementById("compare-heading")?.scrollIntoView());
}

const textOfView = ({ target, minus, against, compares }: Ready) => compares ? words.ready[compares]
  : target ? words.ready.why(target, minus, Boolean(against)) : words.ready.finer;

function Views({ name }: { name: ExampleName }) {
  return <>{VIEWS[name].map((view) => {
    const asked = choiceOf(view), { target, minus, against, method } = choice.value;
    const shown = !view.compares && asked?.target === target && asked?.minus === minus && asked?.against === against && asked?.method === method;
    return asked && <button key={textOfView(view)} type="button" aria-pressed={view.compares || !photo.value ? undefined : shown}
      onClick={() => void open(name, view)}>{textOfView(view)}</button>;
  })}</>;
}

/** All examples, as long as there is no photo. */
export function Examples() {
  return <ul class="samples">
    {(Object.entries(words.sampleNames) as [ExampleName, string][]).map(([name, text]) => <li key={name}>
      <button type="button" class="map" onClick={() => void sample(name)}>
        <img src={`studio/${name}.jpg`} alt="" loading="lazy" /><span>{text}</span>
      </button>
      <p class="soft">{words.sampleLook[name]}</p>
      <div class="views"><Views name={name} /></div>
    </li>)}
  </ul>;
}

/** What to look at in the example that is shown. */
export function Example() {
  const name = examples.get(current.value ?? "");
  if (!name || !photo.value || model.value?.kind !== "classes") return null;
  return <section class="card" id="example" aria-labelledby="example-heading">
    <h2 id="example-heading">{words.example}</h2>
    <p class="soft">{words.sampleLook[name]}</p>
    <div class="row"><Views name={name} /></div>
  </section>;
}
