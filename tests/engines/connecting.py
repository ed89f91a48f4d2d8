"""Privatize, train and predict over Spark Connect, in a process of its own; prints what came out as JSON.

python -m tests.engines.connecting FOLDER
"""

import json
import sys
from pathlib import Path

from labeldp.core.certificate import verify
from labeldp.data.request import TableError
from labeldp.engines import spark as engine

ASK = {"label": "y", "classes": ["no", "yes"], "epsilon": 1.0, "id": "row_id"}


def main(folder):
    from pyspark.sql import SparkSession

    made = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    session = made.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    df = session.range(0, 3000, 1, 6).selectExpr(
        "id as row_id", "if(hash(id) % 1000 > 0, 'yes', 'no') as y", "double(hash(id) % 1000) / 1000 as x",
        "concat('c', abs(hash(id, 3)) % 5) as city",
    )  # fmt: skip
    private = engine.privatize(df, **ASK, out=folder / "private")
    both = private.frame.withColumnRenamed("y", "said").join(df, "row_id").toArrow()
    pairs = list(zip(both.column("said").to_pylist(), both.column("y").to_pylist(), strict=True))
    model = engine.train(df, **ASK, delta=1e-6, out=folder / "model")
    scored = engine.predict(folder / "model", df).select("y", "prediction").toArrow()
    right = [a == b for a, b in zip(*(scored.column(name).to_pylist() for name in ("y", "prediction")), strict=True)]
    try:
        engine.privatize(df.selectExpr("row_id % 7 as row_id", "y"), **ASK, out=folder / "refused")
        said = ""
    except TableError as error:
        said = str(error)
    found = {
        "client": type(df).__module__, "rows": len(pairs), "kept": sum(a == b for a, b in pairs) / len(pairs),
        "problems": [str(one) for one in verify(private.certificate)], "classes": list(model.classes),
        "right": sum(right) / len(right), "refused": said,
        "left": sorted(path.name for path in folder.iterdir() if path.name in ("private", "model", "refused")
                       or path.name.endswith(".run")),
    }  # fmt: skip
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
