"""Accuracy on tables at ε = 0.1 to 4: what `auto` is worth beside each of its methods and what else one could do.

    auto                LabelDPClassifier(epsilon), nothing else set; "chosen" in its lines is the method it took. With
                        --same-runs it is not run: its line is that of the method it takes, which is the same call. What
                        auto is behind is then what it chose wrongly, without the luck of two draws of one method
    one_shot, one_shot+kernel, rr+learner, boosting
                        LabelDPClassifier(epsilon, method=…)
    rr, then boosting   randomized response (ours), then scikit-learn's HistGradientBoostingClassifier
    rr, then logistic   the same with LogisticRegression on standardised numbers and one-hot categories
    diffprivlib         its LogisticRegression: whole rows are private, a stronger promise; for reference, if installed
    open boosting, open logistic
                        no privacy, for reference

Rows train (three quarters, drawn at random) or test; nothing is set aside for an evaluation. Test labels are open and
only measured with. Seeds change made-up tables, the split, noise and random_state. Seconds are of one core.

Adult is bundled and digits come with scikit-learn. Census income (KDD) is read from LABELDP_DATA. Churn, credit and hpc
are tables of the R package modeldata (Debian: r-cran-modeldata), exported to a folder for --modeldata:

    Rscript -e 'lazyLoad(file.path(system.file("data", package = "modeldata"), "Rdata"))
                for (name in c("wa_churn", "credit_data", "hpc_data"))
                    write.csv(get(name), paste0(name, ".csv"), row.names = FALSE)'

Every training is appended to --out as it ends (`experiments/results/README.md` has the fields), and what is there
already is not run again.

Run: OMP_NUM_THREADS=1 python -m benchmarks.tabular --out FILE [--modeldata FOLDER] [--tables xor,adult]
     [--epsilon 0.1,0.5,1,2,4] [--seeds 1] [--rows 12000] [--jobs 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks import development
from benchmarks.learners import TABLES as TO_LEARN
from benchmarks.tabular_auc import full_dp_scores, kdd_tables
from experiments import records
from experiments.run import record_of
from experiments.settings import Run
from labeldp.core.certificate import Certificate
from labeldp.core.vault import LabelVault
from labeldp.data.files import adult_path
from labeldp.estimator.classifier import LabelDPClassifier
from labeldp.mechanisms.responses import RandomizedResponse

# Tables of modeldata: file and label.
MODELDATA = {"churn": ("wa_churn", "churn"), "credit": ("credit_data", "Status"), "hpc": ("hpc_data", "class")}
TABLES = (*TO_LEARN, "adult", "census", "digits", *MODELDATA)
MADE_UP = {**TO_LEARN, **development.MADE_UP}
KNOWN = (*TABLES, *development.TABLES)
METHODS = ("auto", "one_shot", "one_shot+kernel", "rr+learner", "boosting")
RESPONSES = ("rr, then boosting", "rr, then logistic")
OPEN = ("open boosting", "open logistic")
CONTESTANTS = (*METHODS, *RESPONSES, "diffprivlib", *OPEN)
_CENSUS_ROWS = 30_000


class Data(NamedTuple):
    """Public features, categories typed as such, and labels 0 … classes − 1; of rows to train and to test."""

    x: pd.DataFrame
    y: np.ndarray
    test_x: pd.DataFrame
    test_y: np.ndarray
    classes: int


class Outcome(NamedTuple):
    """Predicted classes of the test rows, what was promised for them, and more for the line."""

    predicted: np.ndarray
    claim: Certificate
    more: dict[str, Any]


# -- tables ------------------------------------------------------------------------------------------------------------


def table(name: str, seed: int, modeldata: str | None) -> tuple[pd.DataFrame, pd.Series]:
    """Features and labels; FileNotFoundError, which says what to do, where the table is not here."""
    if name in MADE_UP:
        x, y = MADE_UP[name](seed)
        return x if isinstance(x, pd.DataFrame) else pd.DataFrame(x).add_prefix("x"), pd.Series(y)
    whole: Any
    if name == "adult":
        whole, label = pd.concat([pd.read_parquet(adult_path(part)) for part in ("train", "test")]), "income"
    elif name == "census":
        parts = kdd_tables()
        if parts is None:
            raise FileNotFoundError("set LABELDP_DATA to the folder that has census_income_kdd/")
        *tables, label = parts
        whole = pd.concat([part.to_pandas() for part in tables]).sample(_CENSUS_ROWS, random_state=seed)
    elif name == "digits":
        digits: Any = load_digits(as_frame=True)
        whole, label = digits.frame, "target"
    elif modeldata is None:
        raise FileNotFoundError("export it from the R package modeldata and give its folder as --modeldata")
    elif name in development.MODELDATA:
        return development.real(name, modeldata)
    else:
        file, label = MODELDATA[name]
        whole = pd.read_csv(Path(modeldata) / f"{file}.csv")
    return whole.drop(columns=label), whole[label]


@lru_cache(maxsize=1)
def split(name: str, seed: int, rows: int, modeldata: str | None) -> Data:
    """At most so many rows at random, a quarter of them to test."""
    x, labels = table(name, seed, modeldata)
    texts = x.select_dtypes(exclude="number").columns
    x = x.astype(dict.fromkeys(texts, "category"))
    y, classes = pd.factorize(labels, sort=True)
    order = np.random.default_rng(seed).permutation(len(x))[:rows]
    train, test = np.split(order, [3 * len(order) // 4])
    return Data(x.iloc[train], y[train], x.iloc[test], y[test], len(classes))


# -- contestants -------------------------------------------------------------------------------------------------------


def estimator(data: Data, method: str, epsilon: float, seed: int) -> Outcome:
    """Fit ours, with nothing set but ε and the method."""
    model = LabelDPClassifier(epsilon, method=method, classes=list(range(data.classes)), holdout=0, random_state=seed)
    predicted = model.fit(data.x, data.y).predict(data.test_x)
    return Outcome(predicted, model.certificate_, {"chosen": model.method_, "evidence": model.evidence_})


@lru_cache(maxsize=1)
def encoded(
    name: str, seed: int, rows: int, modeldata: str | None
) -> tuple[LabelDPClassifier, LabelVault, torch.Tensor]:
    """Return an estimator that has seen the rows' features, their labels, and what heads see."""
    data = split(name, seed, rows, modeldata)
    model = LabelDPClassifier(1.0, classes=list(range(data.classes)), random_state=seed)
    seen, _ = model._fit_features(model._read(data.x, reset=True), seed)
    return model, LabelVault(data.y, data.classes), seen


def taken(run: Run, modeldata: str | None) -> str:
    """Return the method that `auto` takes: by public numbers, so that no label is asked."""
    model, vault, seen = encoded(run.dataset, run.seed, run.settings["rows"], modeldata)
    return model._choose(vault, seen, run.epsilon, min(1e-5, 0.1 / len(vault)))[1]


def usual(data: Data, learner: str, labels: np.ndarray, seed: int) -> np.ndarray:
    """Fit what one would without us; return classes of the test rows."""
    if learner == "boosting":
        model: Any = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    else:
        model = make_pipeline(encoder(), LogisticRegression(max_iter=300))
    return model.fit(data.x, labels).predict(data.test_x)


def encoder() -> Any:
    """Standardised numbers and one-hot categories."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_include="category")),
    )


def contest(data: Data, run: Run) -> Outcome:
    """Run one contestant."""
    if run.method in METHODS:
        return estimator(data, run.method, run.epsilon, run.seed)
    vault, learner = LabelVault(data.y, data.classes), run.method.split()[-1]
    if run.method in RESPONSES:
        responses = vault.release(RandomizedResponse(run.epsilon, data.classes)).hard()
        return Outcome(usual(data, learner, responses, run.seed), vault.certificate(), {})
    labels = vault.reveal("a reference without privacy of labels alone")
    if run.method in OPEN:
        return Outcome(usual(data, learner, labels, run.seed), vault.certificate(), {})
    found = encoder().fit(data.x)
    scores = full_dp_scores(found.transform(data.x), labels, found.transform(data.test_x), run.epsilon)
    return Outcome(scores.argmax(axis=1) if scores.ndim > 1 else scores > 0, vault.certificate(), {})


def measured(run: Run, modeldata: str | None) -> records.Record:
    """Return the line of one contestant on one table."""
    torch.set_num_threads(1)
    # The same labels are fitted to on purpose, and a logistic regression that goes on and on is no news.
    warnings.simplefilter("ignore")
    data = split(run.dataset, run.seed, run.settings["rows"], modeldata)
    begun = time.process_time()
    predicted, claim, more = contest(data, run)
    right, seconds = 100 * float(np.mean(predicted == data.test_y)), time.process_time() - begun
    return {**record_of(run, right, seconds, claim, "CPU"), **more}


# -- the contest -------------------------------------------------------------------------------------------------------


def all_runs(options: argparse.Namespace, tables: list[str]) -> list[Run]:
    """Every contestant, ε, table and seed, the seeds outermost; those without privacy once per table and seed."""
    runs = []
    for seed in range(options.seeds):
        for name in tables:
            for epsilon in (float("inf"), *map(float, options.epsilon.split(","))):
                for method in options.methods:
                    settings = {"dataset": name, "model": method, "recipe": method, "epochs": 0, "rows": options.rows}
                    if method == "diffprivlib":
                        # Its claim is about rows, and none of our certificates.
                        settings["claimed_epsilon"] = True
                    if (method in OPEN) == np.isinf(epsilon):
                        runs.append(Run("tabular", method, epsilon, seed, settings))
    return runs


def same_runs(runs: list[Run], lines: list[records.Record], modeldata: str | None) -> list[records.Record]:
    """Return lines of auto that are those of the methods that it takes, where these have run."""
    made, found = [], {(line["dataset"], records.asked(line), line["seed"], line["method"]): line for line in lines}
    for run in records.missing([run for run in runs if run.method == "auto"], lines):
        method = taken(run, modeldata)
        line = found.get((run.dataset, run.epsilon, run.seed, method))
        if line is not None:
            made.append({**line, "method": "auto", "settings": run.settings, "chosen": method, "run": f"of {method}"})
    return made


def summary(lines: list[records.Record]) -> str:
    """Return accuracy per cell (mean over seeds), regret of auto, means of contestants, and seconds of auto."""
    found: Any = pd.DataFrame(lines).assign(epsilon=[records.asked(line) for line in lines])
    cells = found.pivot_table(index=["dataset", "epsilon"], columns="method", values="value", sort=False)
    cells = cells.reindex(columns=[name for name in CONTESTANTS if name in cells])
    private, auto = cells[~np.isinf(cells.index.get_level_values("epsilon"))].dropna(axis=1, how="all"), "auto"
    if auto not in private:
        return f"Accuracy in per cent, seeds: {found['seed'].nunique()}\n\n{cells.round(1).to_string(na_rep='–')}"
    by_choice = found[found["method"] == auto].groupby(["dataset", "epsilon"])
    chosen = by_choice["chosen"].agg(lambda methods: ", ".join(sorted(set(methods)))).rename("auto took")
    regret = (private.max(axis=1) - private[auto]).rename("regret")
    of_epsilon = [group.groupby("epsilon") for group in (regret, private, by_choice["seconds"].mean())]
    worst = of_epsilon[0].agg(lambda cell: f"{cell.max():.1f} ({cell.idxmax()[0]})")
    behind = pd.DataFrame({
        "mean regret": of_epsilon[0].mean().round(2), "worst": worst, "seconds of auto": of_epsilon[2].mean().round(1),
    })  # fmt: skip
    whole = private.join(regret).round(1).join(chosen).reset_index()
    return "\n\n".join([
        f"Accuracy in per cent, seeds: {found['seed'].nunique()}", whole.to_string(index=False, na_rep="–"),
        "Without privacy:", cells[[name for name in OPEN if name in cells]].dropna().droplevel(1).round(1).to_string(),
        "Points of auto behind the best private contestant of each cell:", behind.to_string(),
        "Mean accuracy:", of_epsilon[1].mean().round(1).to_string(),
    ])  # fmt: skip


def main() -> None:
    """Read the command line, run what is missing, print all there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tabular.jsonl"), help="file of results, appended to")
    parser.add_argument("--tables", default=",".join(TABLES), help="names, or development for those of that file")
    # "rr, then boosting" has a comma of its own.
    parser.add_argument("--methods", type=re.compile(",(?! )").split, default=CONTESTANTS, help="contestants")
    parser.add_argument("--epsilon", default="0.1,0.5,1,2,4")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    parser.add_argument("--rows", type=int, default=12_000, help="most rows of a table")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--same-runs", action="store_true", help="lines of auto are those of the methods it takes")
    parser.add_argument("--modeldata", metavar="FOLDER", help="wa_churn.csv, credit_data.csv and hpc_data.csv")
    options = parser.parse_args()
    wanted = development.TABLES if options.tables == "development" else options.tables.split(",")
    for name, given, known in (("tables", wanted, KNOWN), ("methods", options.methods, CONTESTANTS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"argument --{name}: {unknown} are not known; choose from {', '.join(known)}")
    tables = []
    for name in wanted:
        try:
            table(name, 0, options.modeldata)
            tables.append(name)
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}")
    runs, skipped = all_runs(options, tables), set()
    to_run = [run for run in runs if not (options.same_runs and run.method == "auto")]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as workers:
        asked = {
            workers.submit(measured, run, options.modeldata): run
            for run in records.missing(to_run, records.read(options.out))
        }
        for done in as_completed(asked):
            run = asked[done]
            try:
                line = done.result()
            except ImportError as error:
                if run.method not in skipped:
                    print(f"{run.method} is left out: {error}; pip install diffprivlib 'scikit-learn<1.8'", flush=True)
                skipped.add(run.method)
                continue
            records.append(options.out, line)
            print(f"{run.dataset} / {run.name}: {line['value']:.1f}, {line['seconds']:.1f} s", flush=True)
    if options.same_runs:
        for line in same_runs(runs, records.read(options.out), options.modeldata):
            records.append(options.out, line)
    lines = records.read(options.out)
    print(summary([line for line in lines if any(records.of_setting([line], run) for run in runs)]))


if __name__ == "__main__":
    main()
