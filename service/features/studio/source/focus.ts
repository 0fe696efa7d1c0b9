// The focus stays on the page: where what had it goes, or can no longer be used, what stands nearest gets it.

const CAN = ["h2", "h3", "a[href]", "summary", "[tabindex]:not([tabindex='-1'])",
  ...["button", "input", "select", "textarea"].map((name) => `${name}:not(:disabled)`)].join();

/** The first thing in an element, or the element itself, that can have the focus. */
function firstIn(element: Element): HTMLElement | undefined {
  const all = [...element.matches(CAN) ? [element] : [], ...element.querySelectorAll(CAN)] as HTMLElement[];
  return all.find((each) => each.checkVisibility());
}

const isGone = (element: Element) => !element.isConnected || element.matches(":disabled") || Boolean(element.closest("[hidden]"));

/** Watches the page from now on. */
export function keepFocus(page: Element): void {
  let last: Element | null = null;
  /** What was around it, from the nearest: its neighbours, what it is in, the neighbours of that, and so on. */
  let around: Element[] = [];
  document.addEventListener("focusin", ({ target }) => {
    last = target as Element;
    around = [];
    for (let each: Element | null = last; each && each !== page; each = each.parentElement) {
      around.push(...[each.nextElementSibling, each.previousElementSibling, each.parentElement].filter((one) => one !== null));
    }
  });
  // A reader may also leave the page's controls, as by a click beside them.
  document.addEventListener("focusout", ({ target }) => queueMicrotask(() => {
    if (target === last && !isGone(last as Element) && document.activeElement !== last) last = null;
  }));
  new MutationObserver(() => {
    const now = document.activeElement;
    if (!last || (now && now !== document.body && now !== last) || !isGone(last)) return;
    for (const each of around) {
      const found = page.contains(each) && !each.closest("[hidden]") &&
        firstIn(each === page ? page.querySelector("main") ?? page : each);
      if (!found) continue;
      if (found.tabIndex < 0) found.tabIndex = -1;  // a heading
      found.focus({ preventScroll: true });
      return;
    }
  }).observe(page, { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled", "hidden"] });
}
