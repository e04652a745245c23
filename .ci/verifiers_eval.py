"""verifiers' evaluation of the configuration in the first argument, as JSON; every trace is a line of JSON

verifiers' command `eval` wants the settings of a taskset before it has read them (0.3.1), so its runner is called."""
import asyncio, json, sys
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig

if __name__ == '__main__':
    config = EvalConfig.model_validate(json.loads(sys.argv[1]))
    for episode in asyncio.run(run_eval(config)):
        for trace in episode.traces:
            print(trace.model_dump_json(exclude_none=True))
