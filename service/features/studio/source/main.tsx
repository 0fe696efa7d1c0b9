import { render } from "preact";
import { App } from "./app";
import { keepFocus } from "./focus";
import { begin } from "./view";

const page = document.getElementById("studio")!;
keepFocus(page);
render(<App />, page);
void begin();
