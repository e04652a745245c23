"What a language model answers when it is asked for lessons; `fields` replace those named or add to them"

def skill(**fields):
    return dict(title='Heat, then carry', principle='Heat the thing before you carry it.',
                when_to_apply='It should be hot.', category='heat', evidence=[1]) | fields

def mistake(**fields):
    return dict(description='Leaves it cold', why_it_happens='The microwave is far.',
                how_to_avoid='Heat it first.', category='heat', evidence=[1]) | fields
