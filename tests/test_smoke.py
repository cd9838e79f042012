import sinkscope


def test_smoke(diffusion, autoregressive, question, short, tmp_path):
    for name, model in (("d", diffusion), ("a", autoregressive)):
        settings = {"length": 16, "block": 8} if name == "d" else {"length": 16}
        with sinkscope.recording(model, out=tmp_path / name):
            sinkscope.generate(model, [question, short], **settings)
        for trace in sinkscope.open_traces(tmp_path / name):
            sinks = sinkscope.find_sinks(trace)
            print(trace, len(sinks), sinkscope.track(sinks).kinds)
