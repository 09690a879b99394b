BEGIN TRANSACTION;
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    name TEXT UNIQUE,
    model TEXT NOT NULL,
    system TEXT,
    head INTEGER REFERENCES message ON DELETE SET NULL,
    updated REAL NOT NULL,
    settings TEXT NOT NULL DEFAULT '{}'  -- JSON: see Conversation; files of earlier versions lack it
);
INSERT INTO "conversation" VALUES(1,'fruit','smollm2-135m','Be brief.',6,1.79570049429841184615e+09,'{"temp": "2", "seed": "3", "max-tokens": "6", "think": "off", "logit-bias": "5=-1"}');
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    parent INTEGER REFERENCES message ON DELETE CASCADE,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    thinking TEXT NOT NULL,
    how TEXT NOT NULL,  -- JSON: SamplingInfo
    outcome TEXT,       -- JSON: see StoredMessage.as_exported; NULL while it is being generated
    created REAL NOT NULL
);
INSERT INTO "message" VALUES(1,1,NULL,'user','Name a fruit.','','null',NULL,1.79570046589117884635e+09);
INSERT INTO "message" VALUES(2,1,1,'assistant','A fruit is a fruit,','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "length", "tokens": [49, 4354, 314, 253, 4354, 28], "k": [2, 1, 1, 1, 1, 2], "chosen": [], "attached": 0, "repeated": 0, "prompt_tokens": 21, "evaluated_tokens": 21, "first_token_s": 26.461834521000014, "seconds": 26.96742958599998, "continued": []}',1.7957004660114941597e+09);
INSERT INTO "message" VALUES(3,1,1,'assistant','A fruit is a fruit, but not a fruit.','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "stop", "tokens": [49, 4354, 314, 253, 4354, 28, 564, 441, 253, 4354, 30], "k": [2, 1, 1, 1, 1, 2, 1, 2, 1, 1, 2], "chosen": [], "attached": 0, "repeated": 0, "prompt_tokens": 27, "evaluated_tokens": 1, "first_token_s": 0.04377840400002242, "seconds": 0.576968154000042, "continued": [{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 6, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "b0bf784bad9779af"}]}',1.79570049320665764804e+09);
INSERT INTO "message" VALUES(4,1,1,'assistant','A pear is a fruit that is native','A pear is a fruit.','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "length", "tokens": [49, 17306, 314, 253, 4354, 338, 314, 4534], "k": [2, 1, 1, 1, 1, 1, 1, 1], "chosen": [1], "attached": 0, "repeated": 0, "prompt_tokens": 23, "evaluated_tokens": 1, "first_token_s": 0.07817404200000055, "seconds": 0.4726501449999887, "continued": [{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 2, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "b0bf784bad9779af"}]}',1.79570049382304215432e+09);
INSERT INTO "message" VALUES(5,1,4,'user','notes.txt:
```
A leek.
```

And a vegetable.','','null','{"finish_reason": null, "tokens": [], "k": [], "chosen": [], "attached": 28, "repeated": 0, "prompt_tokens": 0, "evaluated_tokens": 0, "first_token_s": 0.0, "seconds": 0.0, "continued": []}',1.7957004942974646092e+09);
INSERT INTO "message" VALUES(6,1,5,'assistant','A','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 2.0, "seed": 3, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": false, "constraints": {"logit_bias": {"5": -1.0}}, "prompt": "831d98ee8a443236"}',NULL,1.79570049429841184615e+09);
CREATE TABLE piece (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES message ON DELETE CASCADE,
    thinking INTEGER NOT NULL,
    text TEXT NOT NULL
);
INSERT INTO "piece" VALUES(1,6,0,' le');
INSERT INTO "piece" VALUES(2,6,1,'Hm.');
CREATE INDEX message_parent ON message (conversation, parent);
CREATE INDEX piece_message ON piece (message, id);
COMMIT;
PRAGMA user_version = 1;
