"""SQuAD's paragraphs with invented names and numbers: questions that no model has read the answers of.

    python tools/measure/invented_set.py dev-v1.1.json QUESTIONS FOLDER

In each article every name becomes an invented one and every number of two digits or more another, in paragraphs, questions and
answers alike; years keep their distances. Names are words that stand in capitals within a sentence, and nowhere else without.
FOLDER gets all in the layout of `retrieval_sets.py`. QUESTIONS gets 200, from all articles in turns, a line each: `id`, `document`,
`title`, `text` (the paragraph), `question` and `answers`. They name something invented, and so does each of their short answers.
"""

import collections
import hashlib
import json
import pathlib
import re
import sys

QUESTIONS = 200
WORD = r"[^\W\d_]+"
SYLLABLES = [a + b for a in "b d f g h k l m n p r s t v z br dr kl st tr".split() for b in "a e i o u ar el in or un".split()]
KEPT = set("January February March April May June July August September October November December Monday Tuesday Wednesday".split())
KEPT |= set("Thursday Friday Saturday Sunday I II III IV V VI VII VIII IX X XI XII AM PM BC AD BCE CE Roman".split())


def number_of(*parts):
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big")


class Inventor:
    """What stands for an article's names and numbers."""

    def __init__(self, title, texts, common):
        self.title = title
        self.invented, self.taken = {}, set()
        self.years = (-1) ** (number_of(title, "sign") % 2) * (11 + number_of(title, "years") % 40)
        within = re.compile(r"(?<=[\w,;(] )[A-Z]" + WORD[:-1] + r"*")
        names = {name for text in texts for name in within.findall(text)}
        self.names = {name for name in names if name not in KEPT and common[name.lower()] == 0}

    def name(self, word):
        stem, plural = (word[:-1], "s") if word.endswith("s") and word[:-1] in self.names else (word, "")
        if stem not in self.invented:
            seed = number_of(self.title, stem)
            while True:
                count = 1 if len(stem) <= 3 else 2 if len(stem) <= 7 else 3
                found = "".join(SYLLABLES[seed // 199**place % len(SYLLABLES)] for place in range(count))
                if found not in self.taken:
                    break
                seed += 1
            self.taken.add(found)
            self.invented[stem] = found.upper() if len(stem) > 1 and stem.isupper() else found.capitalize()
        return self.invented[stem] + plural

    def number(self, digits):
        if len(digits) == 4 and 1000 <= int(digits) <= 2100:
            return str(int(digits) + self.years)
        other = str(10 ** (len(digits) - 1) + number_of(self.title, digits) % (9 * 10 ** (len(digits) - 1)))
        return other if other != digits else self.number(digits + "0")[: len(digits)]

    def replace(self, text):
        """The text, and how many names and numbers were replaced in it."""
        count = 0

        def other(match):
            nonlocal count
            word = match[0]
            if word[0].isdigit():
                digits = re.match(r"\d+", word)[0]
                if len(digits) < 2:
                    return word
                count += 1
                found = self.number(digits)
                if word[len(digits) :] in ("st", "nd", "rd", "th"):
                    suffixes = {"1": "st", "2": "nd", "3": "rd"}
                    return found + ("th" if found[-2:-1] == "1" else suffixes.get(found[-1], "th"))
                return found + word[len(digits) :]
            if word in self.names or word[:-1] in self.names and word.endswith("s"):
                count += 1
                return self.name(word)
            return word

        return re.sub(r"\d+(?:st|nd|rd|th|s)?(?![^\W\d_])|" + WORD, other, text), count


def main():
    source, questions_path, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    articles = sorted(json.load(open(source))["data"], key=lambda article: article["title"])
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    common = collections.Counter(word for text in texts for word in re.findall(WORD, text) if word.islower())
    fit = []
    corpus, queries, judged = (open(folder / name, "w") for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"))
    print("query-id\tcorpus-id\tscore", file=judged)
    for article in articles:
        title = article["title"].replace("_", " ")
        texts = [paragraph["context"] for paragraph in article["paragraphs"]]
        texts += [title] + [question["question"] for paragraph in article["paragraphs"] for question in paragraph["qas"]]
        inventor = Inventor(title, texts, common)
        of_article = []
        title = inventor.replace(title)[0]
        for place, paragraph in enumerate(article["paragraphs"]):
            text, _ = inventor.replace(paragraph["context"])
            name = f"{number_of(article['title']):016x}-{place}"
            print(json.dumps({"_id": name, "title": title, "text": text}), file=corpus)
            for question in paragraph["qas"]:
                asked, anchors = inventor.replace(question["question"])
                answers = [inventor.replace(answer["text"].strip(" .,;")) for answer in question["answers"]]
                print(json.dumps({"_id": question["id"], "text": asked}), file=queries)
                print(f"{question['id']}\t{name}\t1", file=judged)
                invented = all(count and len(answer) <= 40 and answer in text for answer, count in answers)
                kept = any(word in KEPT for answer, _ in answers for word in answer.split())
                if anchors and invented and not kept and not any(answer in asked for answer, _ in answers):
                    answers = list(dict.fromkeys(answer for answer, _ in answers))
                    line = {"id": question["id"], "document": name, "title": title, "text": text}
                    of_article.append(line | {"question": asked, "answers": answers})
        of_article.sort(key=lambda line: number_of(line["id"]))
        fit.append(of_article)
    turns = [of[turn] for turn in range(max(map(len, fit))) for of in fit if turn < len(of)]
    with open(questions_path, "w") as file:
        for line in turns[:QUESTIONS]:
            print(json.dumps(line, ensure_ascii=False), file=file)
    print(f"{len(turns)} questions fit")


main()
