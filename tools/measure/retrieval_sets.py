"""Public texts with questions and what answers them, in BEIR's layout, for the example `retrieval_quality`.

    python tools/measure/retrieval_sets.py squad dev-v1.1.json FOLDER
    python tools/measure/retrieval_sets.py python-docs SOURCES FOLDER
    python tools/measure/retrieval_sets.py cisi CISI FOLDER

`squad`: SQuAD 1.1's development set (CC BY-SA 4.0); each paragraph is a document, each question has one. `python-docs`: Python's
documentation as reStructuredText (the folder `_sources` of Debian's `python3.11-doc`; PSF License); each section is a document
under its page's title, and its own heading, left out of it, is the question, where it has four words or more. `cisi`: the test
collection (CISI.ALL, CISI.QRY, CISI.REL); titles and abstracts on library science.

Half of the questions are the split `dev`, for trying things, the others `test`: by SQuAD's articles, Python's pages, and CISI's
numbers, in turns.
"""

import json
import pathlib
import re
import sys


def squad(source):
    documents, questions, judged = [], [], []
    articles = sorted(json.load(open(source))["data"], key=lambda article: article["title"])
    for number, article in enumerate(articles):
        title = article["title"].replace("_", " ")
        for place, paragraph in enumerate(article["paragraphs"]):
            name = f"{article['title']}-{place}"
            documents.append((name, title, paragraph["context"]))
            for question in paragraph["qas"]:
                questions.append((question["id"], question["question"]))
                judged.append((number, question["id"], name))
    return documents, questions, judged


def plain(text):
    """reStructuredText without its roles, directives' names and targets."""
    text = re.sub(r":[\w:+-]+:`~?!?([^`<]+?)(?: <[^>]*>)?`", r"\1", text)
    text = re.sub(r"^\.\. (?:_[^:\n]*:|index::.*|\w*comment.*|sectionauthor::.*|moduleauthor::.*)$", "", text, flags=re.M)
    text = re.sub(r"^\.\. [\w:-]+::[ ]?", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text.replace("``", "")).strip()


def python_docs(source):
    documents, questions, judged = [], [], []
    heading = re.compile(r"^(?:([=*#~^\-\"'+.])\1{2,}\n)?(\S.*)\n([=*#~^\-\"'+.])\3{2,}$", re.M)
    pages = sorted(pathlib.Path(source).rglob("*.rst.txt"))
    asked = {}
    for number, page in enumerate(pages):
        text = page.read_text()
        found = [match for match in heading.finditer(text) if len(match[0].rsplit("\n", 1)[1]) >= len(match[2]) - 2]
        if not found:
            continue
        title = plain(found[0][2])
        ends = [match.start() for match in found[1:]] + [len(text)]
        for place, (match, end) in enumerate(zip(found, ends)):
            body, own = plain(text[match.end() : end]), plain(match[2])
            if len(body) < 100:
                continue
            name = f"{page.relative_to(source)}-{place}"
            documents.append((name, title, body))
            if place and len(own.split()) >= 4:
                asked.setdefault(own.lower(), []).append((number, name, own))
    for same in asked.values():
        if len(same) == 1:
            number, name, own = same[0]
            questions.append((name, own))
            judged.append((number, name, name))
    return documents, questions, judged


def cisi(source):
    def records(name):
        for record in re.split(r"^\.I ", (pathlib.Path(source) / name).read_text(), flags=re.M)[1:]:
            number, *fields = re.split(r"^\.([A-Z]) *$", record, flags=re.M)
            yield int(number), {key: " ".join(value.split()) for key, value in zip(fields[::2], fields[1::2])}

    documents = [(str(number), fields["T"], fields["W"]) for number, fields in records("CISI.ALL")]
    questions = [(str(number), fields["W"]) for number, fields in records("CISI.QRY")]
    lines = (pathlib.Path(source) / "CISI.REL").read_text().splitlines()
    pairs = dict.fromkeys(tuple(line.split()[:2]) for line in lines)
    return documents, questions, [(int(question), question, document) for question, document in pairs]


def main():
    kind, source, folder = sys.argv[1:]
    make = {"squad": squad, "python-docs": python_docs, "cisi": cisi}[kind]
    documents, questions, judged = make(source)
    folder = pathlib.Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "w") as file:
        for name, title, text in documents:
            print(json.dumps({"_id": name, "title": title, "text": text}), file=file)
    with open(folder / "queries.jsonl", "w") as file:
        for name, text in questions:
            print(json.dumps({"_id": name, "text": text}), file=file)
    for remainder, split in enumerate(["dev", "test"]):
        with open(folder / "qrels" / f"{split}.tsv", "w") as file:
            print("query-id\tcorpus-id\tscore", file=file)
            for number, question, document in judged:
                if number % 2 == remainder:
                    print(f"{question}\t{document}\t1", file=file)
    print(f"{len(documents)} documents, {len(questions)} questions, {len(judged)} answers")


main()
