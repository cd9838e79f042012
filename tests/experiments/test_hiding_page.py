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
