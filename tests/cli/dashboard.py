"""The dashboard in a browser. Argument: the URL of a server."""

import sys

import browser

url = sys.argv[1] + "/"

# Notes every text that an element ever had: a figure may change between two looks.
WATCH = """
window.seen = {rate: [], tokens: [], resident_text: [], transient_text: []};
window.rounds = [];  // the drafts, each with the verified text before it
for (const id of [...Object.keys(seen), "draft"]) {
  new MutationObserver(changes => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (id == "draft") rounds.push([$("verified").textContent, node.data]);
        else seen[id].push(node.data);
      }
    }
  }).observe($(id), {childList: true});
}
true
"""

with browser.Page() as page:
    page.open(url)
    page.wait("$('model').textContent == 'tiny'")
    page.run(WATCH)

    # A short answer, to its end.
    page.type("#prompt", "What is a KV cache?")
    page.type("#count", "30")
    page.click("#ask")
    page.wait("$('cost').textContent.includes('tokens/s')")
    answer = page.run("$('verified').textContent")
    assert answer
    assert page.run("$('draft').textContent") == "", "no draft is left"
    page.wait("[...document.querySelectorAll('#answers td:nth-child(3)')].some(cell => cell.textContent == '30')")
    assert page.wait("$('tokens').textContent") == "30"
    assert page.wait("$('accepted').textContent.endsWith('%')")

    # Drafts look other than what is verified, and came before it.
    style = "(id => { const own = getComputedStyle($(id)); return [own.color, own.opacity]; })"
    verified_color, verified_opacity = page.run(style + "('verified')")
    draft_color, draft_opacity = page.run(style + "('draft')")
    assert verified_color != draft_color and float(draft_opacity) < float(verified_opacity)
    rounds = [each for each in page.run("rounds") if each[1]]
    assert any(answer.startswith(before + draft) for before, draft in rounds), "a draft is confirmed"

    # A long one that is stopped once all figures have moved.
    page.type("#count", "450")
    page.run("for (const id of Object.keys(seen)) seen[id].length = 0; rounds.length = 0;")
    page.click("#ask")
    page.wait("rounds.some(each => each[1]) && $('verified').textContent != ''")
    page.wait("seen.rate.some(text => Number(text) > 0)")
    page.wait("seen.tokens.some(text => Number(text) > 30)")
    for kind in ("resident", "transient"):
        page.wait(f"seen.{kind}_text.some(text => parseFloat(text) > 0)")
    page.click("#stop")
    page.wait("$('cost').textContent == 'stopped'")
    for kind in ("resident", "transient"):
        page.wait(f"$('{kind}_text').textContent == '0 B'")

    assert not page.errors(), page.errors()
    elsewhere = [each for each in page.requests() if not each.startswith(url)]
    assert not elsewhere, elsewhere
