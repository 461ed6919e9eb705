/* What a page does in the browser: it follows Airflow's theme, shows news without a reload, copies a commit_ts.
   Without this script every page still shows everything. */
"use strict";

(() => {
  const root = document.documentElement;
  const EVERY_MS = 5000;

  // In Airflow's frame its theme counts, not the system's.
  function followTheme() {
    let outer = null;
    try {
      outer = window.parent !== window ? window.parent.document.documentElement : null;
    } catch {
      return; // A frame of another host: the system's theme stays.
    }
    if (!outer) return;
    const follow = () => {
      const theme = ["dark", "light"].find((name) => outer.classList.contains(name)) ?? outer.dataset.theme;
      if (theme) root.dataset.theme = theme;
    };
    follow();
    new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme"] });
  }

  // On a narrow screen a row becomes a block, in which each cell says which column it is.
  function nameCells(within) {
    for (const table of within.querySelectorAll("table")) {
      const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
      for (const row of table.tBodies[0]?.rows ?? []) {
        [...row.cells].forEach((cell, at) => { if (cell.colSpan === 1 && names[at]) cell.dataset.label = names[at]; });
      }
    }
  }

  function localTime(element) {
    const moment = element.dataset.time && new Date(element.dataset.time);
    if (!moment || isNaN(moment) || element.dataset.local) return;
    element.dataset.local = "1";
    element.title += `\n${moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" })}`;
  }

  async function copy(button) {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without HTTPS there is no clipboard API.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.dataset.copied = `copied ${text}`;
    setTimeout(() => delete button.dataset.copied, 1500);
  }

  function isUsed(part) {
    const active = document.activeElement;
    if (part.contains(active) && active !== part && active.matches("input, button, summary, a, [tabindex]")) return true;
    const selection = getSelection();
    return !!selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function replaceParts(fresh, known) {
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const name = part.dataset.part;
      const old = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (!old || known.get(name) === part.outerHTML || isUsed(old)) continue;
      known.set(name, part.outerHTML);
      for (const open of old.querySelectorAll("details[open][id]")) {
        part.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
      }
      nameCells(part);
      old.replaceWith(part);
    }
  }

  function keepUpToDate() {
    const light = document.querySelector("[data-live]");
    if (!light) return;
    const known = new Map();
    let stopped = false;
    let due = performance.now() + EVERY_MS;
    light.hidden = false;
    const say = (state, text) => { light.dataset.live = state; light.querySelector("span").textContent = text; };

    async function update() {
      const began = performance.now();
      due = Infinity;
      const address = new URL(location.href);
      address.searchParams.set("part", "main");
      try {
        const answer = await fetch(address, { credentials: "same-origin" });
        if (!answer.ok) throw new Error(String(answer.status));
        replaceParts(new DOMParser().parseFromString(await answer.text(), "text/html"), known);
        if (!stopped) say("on", "Live");
      } catch {
        if (!stopped) say("lost", `No news since ${light.dataset.at ?? "the page was loaded"}`);
      }
      if (light.dataset.live === "on") light.dataset.at = new Date().toLocaleTimeString();
      const took = performance.now() - began;
      // A slow server is asked less often.
      due = performance.now() + Math.max(EVERY_MS, 10 * took);
    }

    light.addEventListener("click", () => {
      stopped = !stopped;
      light.setAttribute("aria-pressed", String(!stopped));
      if (stopped) say("off", "Updates paused"); else { say("on", "Live"); due = 0; }
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) due = Math.min(due, performance.now()); });
    setInterval(() => { if (!stopped && !document.hidden && performance.now() >= due) update(); }, 500);
  }

  followTheme();
  document.addEventListener("DOMContentLoaded", () => {
    nameCells(document);
    document.addEventListener("click", (event) => {
      const button = event.target.closest?.("[data-copy]");
      if (button) copy(button);
    });
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => {
        const element = event.target.closest?.("[data-time]");
        if (element) localTime(element);
      });
    }
    keepUpToDate();
  });
})();
