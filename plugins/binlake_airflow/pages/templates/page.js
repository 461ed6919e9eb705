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

  const SVG = "http://www.w3.org/2000/svg";
  const timeOf = (ts) => new Date(Number(BigInt(ts) >> 18n)).toISOString().slice(0, 19).replace("T", " ");

  // A range dragged on a chart is that of the windows that landed in it: a commit_ts stays text, a number would round it.
  function pickRange(event) {
    const plot = event.button === 0 && event.target.closest?.("[data-span] .plot");
    const section = plot && plot.closest("[data-windows]");
    if (!section) return;
    const [first, last] = plot.closest("[data-span]").dataset.span.split(" ").map(Number);
    const box = plot.getBoundingClientRect();
    const windows = readWindows(section);
    const place = (moved) => Math.min(Math.max((moved.clientX - box.left) / box.width, 0), 1);
    const began = place(event);
    let band = null;
    function move(moved) {
      const [low, high] = [began, place(moved)].sort((a, b) => a - b);
      if (!band && (high - low) * box.width < 4) return; // A click.
      if (!band) {
        dropRange(section);
        band = drawBand(plot);
      }
      placeBand(band, low, high);
      const [from, to] = [low, high].map((share) => first + share * (last - first));
      showRange(section, windows.filter(([since, at]) => Number(at) >= from && Number(since) <= to));
    }
    function end() {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
    }
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
    event.preventDefault();
  }

  // What the pointer drags, the keys pick window by window: a slider over each chart, which only they use.
  function offerKeys(within) {
    for (const figure of within.querySelectorAll("[data-windows] [data-span]")) {
      const count = readWindows(figure.closest("[data-windows]")).length;
      const slider = figure.querySelector(".drawing").appendChild(document.createElement("div"));
      const label = `Pick a range on ${figure.getAttribute("aria-label")}: arrow keys choose a window, with Shift they ` +
        "extend the range, Enter goes to its actions, Escape drops it";
      const values = { class: "keys", role: "slider", tabindex: "0", "aria-label": label, "aria-valuemin": "1",
        "aria-valuemax": String(count), "aria-valuenow": String(count), "aria-valuetext": "no range is picked" };
      for (const [name, value] of Object.entries(values)) slider.setAttribute(name, value);
    }
  }

  const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };

  function pickByKey(event) {
    const slider = event.target.closest?.(".keys");
    if (!slider || event.altKey || event.ctrlKey || event.metaKey) return;
    const section = slider.closest("[data-windows]");
    const windows = readWindows(section);
    if (event.key === "Enter" || event.key === " ") section.querySelector(".picked:not([hidden]) a")?.focus();
    else if (event.key === "Escape") dropRange(section);
    else if (event.key in STEPS) {
      const isFirst = !slider.dataset.at;
      const step = isFirst && Math.abs(STEPS[event.key]) === 1 ? 0 : STEPS[event.key]; // The first key picks the newest.
      const at = Math.min(Math.max((isFirst ? windows.length - 1 : Number(slider.dataset.at)) + step, 0), windows.length - 1);
      const from = event.shiftKey && !isFirst ? Number(slider.dataset.from) : at;
      dropRange(section);
      Object.assign(slider.dataset, { at, from });
      const inside = windows.slice(Math.min(from, at), Math.max(from, at) + 1);
      const [first, last] = slider.closest("[data-span]").dataset.span.split(" ").map(Number);
      const [low, high] = [inside[0][0], inside.at(-1)[1]].map((ms) => Math.min(Math.max((ms - first) / (last - first), 0), 1));
      placeBand(drawBand(slider.closest("[data-span]").querySelector(".plot")), low, high);
      showRange(section, inside);
      slider.setAttribute("aria-valuenow", String(at + 1));
      slider.setAttribute("aria-valuetext", section.querySelector(".picked strong").textContent);
    } else return;
    event.preventDefault();
  }

  function readWindows(section) {
    return section.dataset.windows.split(";").filter(Boolean).map((text) => text.split(" "));
  }

  function drawBand(plot) {
    const band = plot.appendChild(document.createElementNS(SVG, "rect"));
    for (const [name, value] of [["class", "band"], ["y", "0"], ["height", "100%"]]) band.setAttribute(name, value);
    return band;
  }

  function placeBand(band, low, high) {
    band.setAttribute("x", `${100 * low}%`);
    band.setAttribute("width", `${100 * (high - low)}%`);
  }

  function showRange(section, inside) {
    const picked = section.querySelector(".picked");
    picked.hidden = !inside.length;
    if (!inside.length) return;
    const [lo, hi] = [inside[0][2], inside.at(-1)[3]];
    picked.querySelector("strong").textContent =
      `${inside.length} ${inside.length === 1 ? "window" : "windows"}: commits after ${timeOf(lo)} up to ${timeOf(hi)} UTC`;
    for (const link of picked.querySelectorAll("[data-range]")) link.href = `${link.dataset.range}?from=${lo}&to=${hi}`;
  }

  function dropRange(section) {
    for (const band of section.querySelectorAll(".band")) band.remove();
    for (const slider of section.querySelectorAll(".keys")) {
      delete slider.dataset.at;
      slider.setAttribute("aria-valuetext", "no range is picked");
    }
    section.querySelector(".picked").hidden = true;
  }

  function isUsed(part) {
    if (part.querySelector(".picked:not([hidden])")) return true;
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
      if (part.matches("[data-windows]")) offerKeys(part.parentElement);
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
    offerKeys(document);
    document.addEventListener("click", (event) => {
      const button = event.target.closest?.("[data-copy]");
      if (button) copy(button);
      const drop = event.target.closest?.("[data-drop]");
      if (drop) dropRange(drop.closest("[data-windows]"));
    });
    document.addEventListener("pointerdown", pickRange);
    document.addEventListener("keydown", pickByKey);
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => {
        const element = event.target.closest?.("[data-time]");
        if (element) localTime(element);
      });
    }
    keepUpToDate();
  });
})();
