"""A model without a will of its own, for agent programs: `FaultServer(rest=model)`.

It opens the skill `mug-notes` if it is offered, writes NOTES.md with a shell and says so. The code of the
skill stands in the file if the skill was read. Four protocols: messages, responses, completions, Gemini."""
import json
from faults import Answer

CODE, SKILL = 'ZX-4417', 'mug-notes'
SAID = 'NOTES.md is written.'
OPENS = {'Skill': 'skill', 'skill': 'name', 'activate_skill': 'name'}
SHELLS = 'Bash', 'bash', 'exec_command', 'run_shell_command'
USAGE = dict(input_tokens=11, output_tokens=7, total_tokens=18, prompt_tokens=11, completion_tokens=7)

def tools_of(body):
    "Name → what the request says of the tool"
    listed = [f for t in body.get('tools') or [] for f in t.get('functionDeclarations') or [t]]
    return {f['name']: json.dumps(f) for t in listed if 'name' in (f := t.get('function') or t)}

def next_call(body):
    "(tool, arguments), or None to end with a sentence, as after some calls in vain"
    text, tools = json.dumps(body), tools_of(body)
    turns = body.get('messages') or body.get('input') or body.get('contents')
    if not tools or 'NOTES-' + 'WRITTEN' in text or len(turns) > 12:
        return None
    if SKILL in text and CODE not in text:
        for tool in tools.keys() & OPENS.keys():
            return tool, {OPENS[tool]: SKILL}
        command = f'cat $HOME/.agents/skills/{SKILL}/SKILL.md'
    else:
        command = f"echo '{CODE if CODE in text else 'no code'}' > NOTES.md; echo NOTES-''WRITTEN"
    tool = next(t for t in SHELLS if t in tools)
    return tool, {'cmd' if '"cmd"' in tools[tool] else 'command': command, 'description': 'Notes'}

def stream(*events):
    names = [f'event: {e["type"]}\n' if 'type' in e else '' for e in events]
    text = ''.join(f'{name}data: {json.dumps(e)}\n\n' for name, e in zip(names, events))
    return Answer(text, headers={'content-type': 'text/event-stream'})

def messages(body, call, n):
    block, delta = dict(type='text', text=''), dict(type='text_delta', text=SAID)
    if call:
        block = dict(type='tool_use', id=f'toolu_{n}', name=call[0], input={})
        delta = dict(type='input_json_delta', partial_json=json.dumps(call[1]))
    start = dict(id=f'msg_{n}', type='message', role='assistant', model='m', content=[], usage=USAGE)
    return stream(dict(type='message_start', message=start),
                  dict(type='content_block_start', index=0, content_block=block),
                  dict(type='content_block_delta', index=0, delta=delta),
                  dict(type='content_block_stop', index=0), dict(type='message_stop'))

def responses(body, call, n):
    item = dict(type='message', role='assistant', content=[dict(type='output_text', text=SAID)])
    if call:
        item = dict(type='function_call', call_id=f'call_{n}', name=call[0], arguments=json.dumps(call[1]))
    response = dict(id=f'resp_{n}', object='response', status='completed', output=[item], usage=USAGE)
    return stream(dict(type='response.output_item.done', output_index=0, item=item),
                  dict(type='response.completed', response=response))

def completions(body, call, n):
    if not call and 'COMPLETE_TASK' in json.dumps(body): # How mini-swe-agent ends
        call = 'bash', dict(command='echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')
    message, why = dict(role='assistant', content=SAID), 'tool_calls' if call else 'stop'
    if call:
        function = dict(name=call[0], arguments=json.dumps(call[1]))
        message['tool_calls'] = [dict(index=0, id=f'call_{n}', type='function', function=function)]
    whole = dict(id='c1', created=0, model='m', object='chat.completion', usage=USAGE)
    if not body.get('stream'):
        return Answer(whole | dict(choices=[dict(index=0, message=message, finish_reason=why)]))
    return stream(whole | dict(choices=[dict(index=0, delta=message, finish_reason=why)]))

def gemini(body, call, n):
    part = dict(functionCall=dict(name=call[0], args=call[1])) if call else dict(text=SAID)
    usage = dict(promptTokenCount=11, candidatesTokenCount=7, totalTokenCount=18)
    candidate = dict(content=dict(role='model', parts=[part]), finishReason='STOP')
    return stream(dict(candidates=[candidate], usageMetadata=usage))

PROTOCOLS = dict(messages=messages, responses=responses, completions=completions)

def model(request):
    "What it answers to a request of any of the programs"
    body = request['body']
    protocol = PROTOCOLS.get(request['path'].split('?')[0].rpartition('/')[2], gemini)
    return protocol(body, next_call(body), len(json.dumps(body)))
