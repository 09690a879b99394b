PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    name TEXT UNIQUE,
    model TEXT NOT NULL,
    system TEXT,
    head INTEGER REFERENCES message ON DELETE SET NULL,
    updated REAL NOT NULL
);
INSERT INTO "conversation" VALUES(1,'fruit','smollm2-135m','Be brief.',4,1.79547526037476801868e+09);
INSERT INTO "conversation" VALUES(2,NULL,'smollm2-135m',NULL,6,1.79547526528158211704e+09);
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    parent INTEGER REFERENCES message ON DELETE CASCADE,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    thinking TEXT NOT NULL,
    how TEXT NOT NULL,  -- JSON: SamplingInfo
    outcome TEXT,       -- JSON: Outcome; NULL while it is being generated
    created REAL NOT NULL
);
INSERT INTO "message" VALUES(1,1,NULL,'user','Name a fruit.','','null',NULL,1.7954752340649020671e+09);
INSERT INTO "message" VALUES(2,1,1,'assistant','The most iconic example of a fruit is the Banana,','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 0.0, "seed": 3540775699, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": null, "constraints": {"repeat_penalty": 1.1}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "length", "tokens": [504, 768, 13329, 1183, 282, 253, 4354, 314, 260, 12619, 3231, 28], "k": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "prompt_tokens": 27, "evaluated_tokens": 1, "first_token_s": 0.2938861069997074, "seconds": 2.0708550569997897, "continued": [{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 0.0, "seed": 825660827, "first_token": 6, "first_message": 0, "system": "Be brief.", "thinking": null, "constraints": {"repeat_penalty": 1.1}, "prompt": "b0bf784bad9779af"}], "chosen": [], "repeated": 0}',1.79547524684372305876e+09);
INSERT INTO "message" VALUES(3,1,1,'assistant','A simple yet effective example of','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 5.0, "seed": 7, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": null, "constraints": {"repeat_penalty": 1.1}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "length", "tokens": [49, 2232, 2408, 2430, 1183, 282], "k": [2, 3, 1, 1, 1, 1], "prompt_tokens": 21, "evaluated_tokens": 1, "first_token_s": 0.5150671629999124, "seconds": 3.089907524999944, "continued": [], "chosen": [], "repeated": 0}',1795475257.59618);
INSERT INTO "message" VALUES(4,1,1,'assistant','A pear is one of the most iconic','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 5.0, "seed": 7, "first_token": 0, "first_message": 0, "system": "Be brief.", "thinking": null, "constraints": {"repeat_penalty": 1.1}, "prompt": "b0bf784bad9779af"}','{"finish_reason": "length", "tokens": [49, 17306, 314, 582, 282, 260, 768, 13329], "k": [2, 3, 1, 1, 1, 1, 1, 1], "prompt_tokens": 23, "evaluated_tokens": 1, "first_token_s": 0.20211661600023945, "seconds": 1.6226795069997024, "continued": [{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 0.0, "seed": 4232677267, "first_token": 2, "first_message": 0, "system": "Be brief.", "thinking": null, "constraints": {"repeat_penalty": 1.1}, "prompt": "b0bf784bad9779af"}], "chosen": [1], "repeated": 0}',1.79547526037476801868e+09);
INSERT INTO "message" VALUES(5,2,NULL,'user','Hello','','null',NULL,1.79547526179720115663e+09);
INSERT INTO "message" VALUES(6,2,5,'assistant','Hello! I''should','','{"model": "smollm2-135m", "sampler": "min-k:tau=3", "temperature": 0.0, "seed": 1536787648, "first_token": 0, "first_message": 0, "system": null, "thinking": null, "constraints": {}, "prompt": "4120c677df00c6d2"}','{"finish_reason": "length", "tokens": [19556, 17, 339, 506, 88, 470], "k": [1, 1, 1, 1, 1, 1], "prompt_tokens": 31, "evaluated_tokens": 28, "first_token_s": 3.472519129999455, "seconds": 5.310186820000126, "continued": [], "chosen": [], "repeated": 0}',1.79547526528158211704e+09);
CREATE TABLE piece (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES message ON DELETE CASCADE,
    thinking INTEGER NOT NULL,
    text TEXT NOT NULL
);
INSERT INTO "piece" VALUES(1,4,0,' and more');
CREATE INDEX message_parent ON message (conversation, parent);
CREATE INDEX piece_message ON piece (message, id);
COMMIT;
