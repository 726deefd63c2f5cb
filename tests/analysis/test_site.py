"""The static site: its links lead somewhere."""

import re

from qe.analysis.site import DOCUMENTS, NOTEBOOKS, build


def test_every_link_of_the_site_leads_to_a_file_of_it(tmp_path):
    build(tmp_path, without=[path.stem for path in NOTEBOOKS if path.stem != "index"])
    pages = {path.stem for path in tmp_path.glob("*.html")}
    assert pages >= {path.stem for path in NOTEBOOKS + DOCUMENTS}
    assert "runs of MinAtar are in the repository." in (tmp_path / "index.html").read_text()
    for name in pages - {"report"}:
        for link in re.findall(r'<a href="([^"#]+)', (tmp_path / f"{name}.html").read_text()):
            assert "://" in link or (tmp_path / link).exists(), f"{name}: {link}"
