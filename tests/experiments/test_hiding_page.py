"""results/hiding/README.md agrees with the results in its folder."""

import copy

import hiding_page


def test_the_page_is_what_the_results_say():
    assert hiding_page.PAGE.read_text() == hiding_page.page(hiding_page.read())


def test_every_result_has_a_section():
    documents = hiding_page.read()
    assert {name for name, _ in hiding_page.SECTIONS} == set(documents)


def test_a_changed_number_changes_the_page():
    documents = hiding_page.read()
    for name, place in {"arms": ("models", "lab-diffusion", "arms", "top:1"), "probe-0": ("cells", "top")}.items():
        changed = copy.deepcopy(documents)
        one = changed[name]
        for key in place:
            one = one[key]
        one["removed_share"] = 0.123456
        assert "12.3 %" in hiding_page.page(changed)
        assert hiding_page.page(changed) != hiding_page.page(documents)


def test_the_table_of_what_top_keys_carry_is_what_the_probe_says():
    documents = hiding_page.read()
    cells = documents["probe-0"]["cells"] | {"top, head 4.2": documents["probe-0-heads"]["cells"]["top, head 4.2"]}
    page = (hiding_page.RESULTS / "top-keys.md").read_text()
    lines = page[page.index("| hidden in every head | results kept |") :].split("\n\n")[0].splitlines()[2:]
    written = [line.split("|")[2].strip() for line in lines]

    def kept(name):
        low, high = cells[name]["kept_interval"]
        return f"{cells[name]['kept']:.2f} ({low:.2f}–{high:.2f})".replace("0.", ".")

    def seeds(name):
        return ", ".join(f"{cells[f'{name}, seed {seed}']['kept']:.2f}".replace("0.", ".") for seed in range(3))

    assert written == [
        kept("top"),
        seeds("random of equal mass"),
        seeds("random of equal mass where written"),
        kept("top, less of it"),
        seeds("random of equal mass where written, less of it"),
        kept("top, most of the row where written"),
        kept("top, zeroed"),
        kept("top, value replaced by the mean"),
        kept("top, larger contribution"),
        kept("top, sinks by Eq. 3"),
        kept("top, from committed position"),
        kept("top, head 4.2"),
    ]
    shares = {
        name: 100 * cells[name]["keys_per_head"] for name in ("top, less of it", "top, most of the row where written")
    }
    assert "({:.0f} % of heads × canvases)".format(shares["top, less of it"]) in page
    assert "than half of that row ({:.0f} %)".format(shares["top, most of the row where written"]) in page
    random, top = (
        cells[name]["removed_where_written"]
        for name in ("random of equal mass where written, less of it, seed 0", "top, less of it")
    )
    assert f"that row there ({100 * random:.1f} % against {100 * top:.1f} %)" in page
    random, top = (cells[name] for name in ("random of equal mass where written, seed 0", "top"))
    there, of_all = (100 * random[name] for name in ("removed_where_written", "removed_share"))
    assert (
        f"({there:.1f} % against {100 * top['removed_where_written']:.1f} % is what they reach; {of_all:.0f} % of all attention)"
        in page
    )
    assert f"too weak by {top['removed_where_written'] / random['removed_where_written']:.1f} there" in page
    assert "(.99)" in page and round(cells["top, smaller contribution"]["kept"], 2) == 0.99
