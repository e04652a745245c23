"What mistakes drawn at random had left unseen: figures, sums, arguments that only pass through"
import json, math, random
from types import SimpleNamespace
import pytest, torch
from matplotlib.pyplot import imread
from skillrl.agent.episode import Episode, rollout, StepRow
from skillrl.core.config import SkillRLConfig
from skillrl.core.stats import _design_effect, _tango_score, clustered_gain, gain_interval
from skillrl.core.trajectory import Step, Trajectory
from skillrl.worlds.webshop.reward import _compare_kinds, _greedy_ratio, _plain, letter_nouns
from skillrl.skills.bank import SkillBank
from skillrl.skills.trials import _Effect, _mean_effect
from skillrl.llm.adapter import base_of
from skillrl.llm.decoding import MOST_SCORES
from skillrl.training import builders, costs, phases, plan, rl
from skillrl.training.builders import build_retriever
from skillrl.training.evaluate import describe_gain, evaluate, _figure, paired_difference, plot_learning
from skillrl.training.phases import Iteration, trial_trajectory
from skillrl.training.grpo import _group_stats, group_advantage, LossOptions
from skillrl.training.sft import _length_batches, _lr_at, FullOptions, full_sft, micro_batches
from test_rl import ShopEnv, Wish, policy, shopper, tries # noqa: F401 (fixtures)

CONFIG = SkillRLConfig()

def played(game, won):
    return Trajectory(game, 'look', 'look', [Step('a', 'look')], success=won, game=game)

def test_a_plot_of_learning_is_written(tmp_path):
    fig = plot_learning({'training': [0, 1]})
    assert fig.axes[0].get_ylim() == (0, 1) and len(fig.axes[0].lines) == 1
    _figure(tmp_path, 'Learning', 'A caption', fig)
    height, width, _ = imread(tmp_path/'figures'/'learning.png').shape
    assert (width, height) == tuple(int(110*inches) for inches in fig.get_size_inches())

def test_a_bank_alone_is_compared_with_no_bank():
    told = describe_gain({'no bank': [played('a', False)], 'bank': [played('a', True)]})
    assert told.startswith('"no bank" won 0.00 of its games and "bank" 1.00')

def test_two_suites_are_compared_suite_by_suite():
    games = [(home, f'{home}/{i}') for home in ('north', 'south') for i in range(4)]
    before, after = [[played(game, home == won) for home, game in games] for won in ('north', 'none')]
    for t, (home, _) in [*zip(before, games), *zip(after, games)]:
        t.metadata['suite'] = home
    assert paired_difference(before, after) == clustered_gain([[-1]*4, [0]*4])

def test_an_evaluation_samples_as_the_official_validation_does(policy): # noqa: F811
    asked, generate = [], policy.generate
    def listening(prompts, temperature, generator, *args, **kw):
        asked.append((temperature, generator.initial_seed()))
        return generate(prompts, temperature, generator, *args, **kw)
    policy.generate = listening
    evaluate(policy, [Episode(ShopEnv([Wish()], max_steps=1))])
    assert set(asked) == {(.4, 0)}

def test_fine_tuning_tells_each_step_and_refuses_a_pass_without_rows(policy): # noqa: F811
    from skillrl.training.sft import encode_rows
    rows, told = encode_rows([dict(prompt='buy', completion='look')], policy), []
    losses = full_sft(lambda: rows, policy, FullOptions(steps=3), lambda *said: told.append(said))
    assert told == list(enumerate(losses)) and len(told) == 3
    with pytest.raises(ValueError, match='there are no rows'):
        full_sft(lambda: [], policy, FullOptions(steps=3))

def test_a_try_keeps_the_advantages_of_its_steps(policy): # noqa: F811
    episode, = tries(1)
    rollout([episode], policy, 1.)
    episode.rows[0].advantage = .25
    assert [s.advantage for s in trial_trajectory(episode).steps] == [.25]

@pytest.mark.parametrize('losses, mean', [('mean', True), ('sum', False)])
def test_a_server_that_adds_up_is_known_as_such(monkeypatch, losses, mean):
    from skillrl.training.tinker import TinkerPolicy
    monkeypatch.setattr('skillrl.training.tinker.open_service', lambda url, key: url)
    monkeypatch.setattr(TinkerPolicy, 'open', lambda *args: args)
    config = SkillRLConfig().merged({'model.engine_api_base': 'http://localhost:1',
                                     'model.engine_losses': losses})
    assert builders.build_local_policy(config, 'folder') == ('http://localhost:1', 'folder', mean, 16)

def test_gains_are_counted_and_mirrored():
    rate = clustered_gain([[1, 1, 0], [1, -1], [1]])
    assert rate.mean == pytest.approx(3/6) and rate.low < .5 < rate.high
    gains = [.3, -.2, .5, .1, 0, .4]
    low, high = gain_interval(gains)
    assert gain_interval([-g for g in gains]) == pytest.approx((-high, -low))
    assert high > .2

def test_effects_of_one_form_are_pooled_as_in_dersimonian_and_laird():
    means, variances = [.1, .3, .6], [.01, .02, .01]
    weights = [1/v for v in variances]
    fixed = sum(w*m for w, m in zip(weights, means))/sum(weights)
    q = sum(w*(m - fixed)**2 for w, m in zip(weights, means))
    tau = (q - 2)/(sum(weights) - sum(w*w for w in weights)/sum(weights))
    pooled, between = _mean_effect([_Effect(m, v) for m, v in zip(means, variances)])
    assert tau > .3**2/2 and between == pytest.approx(tau)
    wide = [1/(v + tau) for v in variances]
    precision = 1/(.3**2/2) + sum(wide) # Which an effect of nothing, give or take .3, begins with
    assert pooled.mean == pytest.approx(sum(w*m for w, m in zip(wide, means))/precision)
    assert pooled.var == pytest.approx(1/precision)
    assert _mean_effect([_Effect(m, .01) for m in (.2, .21)])[1] == .3**2/2 # Alike, so far

def test_a_purchase_says_which_of_query_and_category_is_right():
    lamp = SimpleNamespace(name='Oak Lamp', query='lamps', path='Home › Lighting › Lamps')
    other = SimpleNamespace(name='Oak Lamp', query='lamps', path='Toys')
    kind = _compare_kinds(other, lamp, letter_nouns)
    assert (kind.query_match, kind.category_match) == (True, False)

def test_words_agree_up_to_100():
    assert (_greedy_ratio('oak lamp', 'lamp oak'), _greedy_ratio('abcd', 'abce')) == (100, 75)

def test_values_that_are_all_the_same_have_no_design_effect():
    assert _design_effect([[1., 1.], [1., 1.]]) == 1.

def test_each_round_goes_on_from_the_bank_of_the_round_before(policy, monkeypatch): # noqa: F811
    shown, made = [], []
    found_in = []
    def iterations(trainer, suites, bank_of, config, numbers, past):
        for i in numbers:
            shown.append(bank_of(suites[0]))
            assert past(suites[0]) == [*range(i)] # All that was played, over rounds
            yield Iteration(i, {}, [(suites[0], i)], i)
    def evolved(policy, suite, bank, config, found, teacher, number):
        found_in.append(found)
        made.append(SkillBank())
        return made[-1], dict(before=bank)
    monkeypatch.setattr(phases, 'rl_iterations', iterations)
    monkeypatch.setattr(phases, 'evolve_on', evolved)
    monkeypatch.setattr(phases, 'experience_in', lambda suite, config, seen, evidence: seen)
    first, config = SkillBank(), CONFIG.merged({'rl.iterations': 3})
    told = []
    _, rounds = phases.train_in_suite(policy, None, first, config, lambda *done: told.append(done))
    expected = [first, *made[:2]]
    assert found_in == [[0], [1], [2]]
    assert all(a is b for a, b in zip(shown, expected, strict=True)) and told == [(1, 3), (2, 3), (3, 3)]
    assert all(record['before'] is b for (_, record), b in zip(rounds, expected, strict=True))

def trainer(algorithm='grpo'):
    t = rl.GRPOTrainer.__new__(rl.GRPOTrainer)
    t.config, t.tokens = CONFIG.merged({'rl.algorithm': algorithm}).rl, 100
    return t

@pytest.mark.parametrize('algorithm, total', [('grpo', 4), ('dr_grpo', 2)])
def test_a_minibatch_is_averaged_over_its_tokens_or_its_rows(algorithm, total):
    t, asked = trainer(algorithm), []
    def loss(chunk, total):
        asked.append(total)
        return torch.zeros(1, requires_grad=True).sum(), {}
    t.loss, t._step = loss, lambda: None
    t.update([[SimpleNamespace(reply_ids=[1, 2, 3])], [SimpleNamespace(reply_ids=[4])]])
    assert asked == [total]*2

def test_what_is_logged_of_an_update_is_the_mean_over_tokens(monkeypatch):
    t, nothing = trainer(), dict(clip_fraction=0., entropy=0.)
    monkeypatch.setattr(rl, '_scored_rows', lambda *args: ([], {}))
    monkeypatch.setattr(rl, 'minibatches', lambda *args: [[]])
    monkeypatch.setattr(rl, 'micro_batches', lambda step, tokens: step)
    logs = [dict(tokens=1, kl=1., loss=1., **nothing), dict(tokens=3, kl=5., loss=3., **nothing)]
    monkeypatch.setattr(t, 'update', lambda chunks: logs)
    assert (t.learn([])['kl'], t.learn([])['loss']) == (4., 2.)

def test_a_spread_as_large_as_the_least_one_counts():
    returns, groups = [0., 2.], [1, 1]
    least = _group_stats(returns, groups)[1].max().item()
    assert group_advantage(returns, groups, eps=least).abs().min() > 0
    assert group_advantage(returns, groups, eps=2*least).abs().max() == 0

def test_an_encoder_gets_its_own_address_and_key(monkeypatch):
    monkeypatch.setattr(builders, '_build_encoder', lambda *args: args)
    model = SimpleNamespace(embedding_api_base='http://localhost:1', embedding_api_key='mug')
    asked = SimpleNamespace(mode='embedding', encoder='openai:small')
    assert builders.build_encoder(asked, model) == ('openai:small', 'http://localhost:1', 'mug')

SEEN = [(5, 2, 20, .1), (3, 3, 12, -.2), (0, 4, 9, -.4), (6, 1, 30, .3)]

@pytest.mark.parametrize('wins, losses, n, d', SEEN)
def test_the_score_of_a_difference_takes_the_likeliest_share_of_losses(wins, losses, n, d):
    def likelihood(q):
        parts = (wins, q + d), (losses, q), (n - wins - losses, 1 - 2*q - d)
        return sum(count*math.log(share) for count, share in parts if count)
    low, high = max(0, -d), (1 - d)/2
    q = max((low + (high - low)*i/50_000 for i in range(1, 50_000)), key=likelihood)
    spread = math.sqrt(n*(2*q + d*(1 - d)))
    assert _tango_score(wins, losses, n, d) == pytest.approx((wins - losses - n*d - 1)/spread, abs=1e-3)

@pytest.mark.parametrize('every, due', [(3, [None, None, 0, None, None, 1, None]), (0, [None]*7)])
def test_a_round_of_evolution_is_due_after_so_many_iterations(monkeypatch, every, due):
    monkeypatch.setattr(phases, 'draw_groups', lambda *args: ([], [None]))
    monkeypatch.setattr(phases, 'rollout_limits', lambda *args: None)
    config = CONFIG.merged({'evolution.validation_interval': every})
    trainer = SimpleNamespace(iterate=lambda *args, **kw: {})
    done = phases.rl_iterations(trainer, [], None, config, range(7))
    assert [it.due for it in done] == due

def test_an_expert_believes_a_skill_in_nine_of_ten_cases(monkeypatch):
    trusts = []
    suite = SimpleNamespace(live=False, games=lambda split, n: [SimpleNamespace(task='look')])
    silent = SimpleNamespace(expert=lambda task, rng, trust: trusts.append(trust))
    monkeypatch.setattr(phases, 'world', lambda name: silent)
    assert phases.learns_from_won(suite, CONFIG) and trusts == [.9]

def test_replies_are_kept_in_a_folder_or_refused(tmp_path):
    (tmp_path/'teacher').write_text('')
    config = CONFIG.merged({'model.teacher_model_id': 'wise', 'model.teacher_api_base': 'http://localhost:1'})
    with pytest.raises(OSError, match='teacher is there, and is no folder: name another'):
        builders.build_teacher(config, tmp_path/'teacher')

@pytest.mark.parametrize('adapter, bits', [('lora', 0), ('qlora', 4)])
def test_only_a_qlora_base_has_four_bits(monkeypatch, adapter, bits):
    monkeypatch.setattr('skillrl.llm.adapter.new_adapter', lambda *args: args)
    made = builders.build_rl_policy(CONFIG.merged({'model.adapter': adapter, 'seed': 3}))
    assert made[1:4] == (16, bits, 3)

def test_options_that_nobody_names():
    assert FullOptions() == FullOptions(300, 1e-3, 32, 0, 65_536)
    assert LossOptions() == LossOptions(.2, .01, 'token-mean', None)
    assert MOST_SCORES == costs._SCORES == 2**25 # What is planned is what is done
    many = build_retriever(SkillBank(), CONFIG.merged({'retrieval.top_k_general': 20}))
    assert many.settings.top_k_mistakes == 3

def test_the_learning_rate_climbs_evenly_and_falls_to_a_tenth():
    assert [_lr_at(step, 100, 4) for step in range(2)] == pytest.approx([.25, .5], rel=1e-3)
    assert (_lr_at(50, 100, 4), _lr_at(100, 100, 4)) == pytest.approx((.55, .1))

def test_letters_beyond_latin_1_count():
    assert (_plain('É Ā-x'), _plain('ÿ')) == ('ā x', '')

def test_batches_come_in_another_order_with_another_seed():
    rows = [StepRow([0]*n, [1]) for n in range(12)]
    drawn = [_length_batches(rows, 4, random.Random(seed)) for seed in range(9)]
    orders = [[[len(r.prompt_ids) for r in batch] for batch in batches] for batches in drawn]
    assert len({str(order) for order in orders}) > 1
    assert all(sorted(order) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] for order in orders)

@pytest.mark.parametrize('prices', [{'o3': [-1, 2]}, {'o3': ['1', 2]}, {'o3': [1]}, [1, 2]])
def test_a_price_is_two_numbers(tmp_path, prices):
    (tmp_path/'usd.json').write_text(json.dumps(prices))
    with pytest.raises(ValueError, match='usd.json does not hold prices'):
        builders.build_ledger(SimpleNamespace(prices=str(tmp_path/'usd.json'), budget_usd=0.))

def test_rows_are_cut_where_one_more_would_be_too_much():
    rows = [StepRow([0]*n, [1]) for n in (2, 2, 2, 3)]
    assert [len(cut) for cut in micro_batches(rows, 9)] == [3, 1]

@pytest.mark.parametrize('path, alike', [('Tea › Green › Leaf', True), ('Tea › Black', False)])
def test_two_steps_of_the_path_in_common_are_enough(path, alike):
    one, other = (SimpleNamespace(name='', query='', path=p) for p in ('Green › Tea', path))
    assert _compare_kinds(one, other, str.split).category_match is alike

def test_a_tokenizer_of_another_kind_is_asked_for_its_template(monkeypatch):
    found = SimpleNamespace(remedy='write one')
    monkeypatch.setattr(plan, 'reads_like_shipped', lambda *_: False)
    monkeypatch.setattr(plan, '_check_template', lambda *_: found)
    assert plan._preflight(CONFIG, learns=False)[-1] is found

def test_an_adapter_that_others_wrote_says_nothing_of_bits(tmp_path):
    (tmp_path/'adapter_config.json').write_text('{"base_model_name_or_path": "tea"}')
    assert base_of(tmp_path) == ('tea', 0)

def test_a_run_without_evolution_asks_no_questions_of_rounds():
    still = {'model.teacher_model_id': 'wise', 'evolution.validation_interval': 0}
    assert plan._run_phases(CONFIG.merged(still))[3].calls == 0
