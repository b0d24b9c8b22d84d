// A browser that runs scripts takes what stands in noscript for text: only frames of charts are there until they are seen
// or printed, not the tens of thousands of marks in them.
const pictures = new Map();
document.querySelectorAll("figure.chart noscript").forEach((text) => {
  const [, head, marks] = text.textContent.match(/(<svg[^>]*>)([^]*)<\/svg>/);
  text.insertAdjacentHTML("beforebegin", `${head}</svg>`);
  pictures.set(text.previousElementSibling, marks);
  text.remove();
});
function draw(picture) {
  if (pictures.has(picture)) picture.innerHTML = pictures.get(picture);
  pictures.delete(picture);
}
addEventListener("beforeprint", () => [...pictures.keys()].forEach(draw));

// Charts that are scrolled into view answer to the pointer; until then, and without scripts, they are pictures. The
// interpreter (ast) stands in for eval, which the page's policy forbids.
const drawn = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    drawn.unobserve(target);
    const picture = target.querySelector("svg");
    draw(picture);
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
