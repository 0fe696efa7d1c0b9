import { render } from "preact";
import { App } from "./app";
import { begin } from "./view";

render(<App />, document.getElementById("studio")!);
void begin();
