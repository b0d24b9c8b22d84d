// Charts that are scrolled into view answer to the pointer; until then, and without scripts, they are pictures. The
// interpreter (ast) stands in for eval, which the page's policy forbids.
const drawn = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    drawn.unobserve(target);
    const picture = target.querySelector("svg");
    const narrow = innerWidth < 560; // a phone: as many panels, maps and keys in a row as fit, words beside the chart
    const fit = (columns) => Math.max(1, Math.floor((innerWidth - 40) / (picture.getAttribute("width") / columns)));
    const one = (key, value) => (narrow && key === "columns" ? fit(value) : value);
    const spec = JSON.parse(target.querySelector("script").textContent, one);
    if (narrow && spec.title?.text) {
      target.prepend(make("p", { class: "note" }, `${spec.title.text}. `, (spec.title.subtitle ?? []).join(" ")));
      delete spec.title;
    }
    const room = make("div", { class: "vega" });
    const options = { actions: false, ast: true, renderer: "svg", mode: "vega-lite" };
    vegaEmbed(room, spec, options).then(() => {
      const chart = room.querySelector("svg");
      for (const name of ["role", "aria-label", "class", "style"]) chart.setAttribute(name, picture.getAttribute(name));
      if (narrow) chart.style.setProperty("--least", `${0.72 * chart.getAttribute("width")}px`);
      picture.replaceWith(room);
    });
  }
}, { rootMargin: "200px" });
document.querySelectorAll("figure.chart").forEach((figure) => drawn.observe(figure));
