-- A journal of schema version 4, dumped from a replay of three sessions.
BEGIN TRANSACTION;
CREATE TABLE alerts (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	level TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE cash_marks (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	cash TEXT NOT NULL, 
	own_cash TEXT NOT NULL, 
	foreign_cash TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "cash_marks" VALUES(1,'2019-01-02T21:16:00.000000+00:00','100000.0','0','0','first start');
INSERT INTO "cash_marks" VALUES(2,'2019-01-03T14:00:00.000000+00:00','100000.0','0','0','agreed');
INSERT INTO "cash_marks" VALUES(3,'2019-01-04T14:00:00.000000+00:00','1389.537346779285190','-98610.462653220714810','0','agreed');
CREATE TABLE closes (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	session TEXT NOT NULL, 
	price TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "closes" VALUES(1,'2019-01-03T14:00:00.000000+00:00','AA','2019-01-02','43.51');
INSERT INTO "closes" VALUES(2,'2019-01-03T14:00:00.000000+00:00','BB','2019-01-02','107.22');
INSERT INTO "closes" VALUES(3,'2019-01-03T14:00:00.000000+00:00','CC','2019-01-02','183.49');
INSERT INTO "closes" VALUES(4,'2019-01-04T14:00:00.000000+00:00','AA','2019-01-03','44.24');
INSERT INTO "closes" VALUES(5,'2019-01-04T14:00:00.000000+00:00','BB','2019-01-03','107.19');
INSERT INTO "closes" VALUES(6,'2019-01-04T14:00:00.000000+00:00','CC','2019-01-03','182.81');
INSERT INTO "closes" VALUES(7,'2019-01-07T14:00:00.000000+00:00','AA','2019-01-04','45.37');
INSERT INTO "closes" VALUES(8,'2019-01-07T14:00:00.000000+00:00','BB','2019-01-04','105.2');
INSERT INTO "closes" VALUES(9,'2019-01-07T14:00:00.000000+00:00','CC','2019-01-04','181.3');
CREATE TABLE command_results (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	command_id INTEGER NOT NULL, 
	outcome TEXT NOT NULL, 
	refused INTEGER, 
	PRIMARY KEY (id), 
	FOREIGN KEY(command_id) REFERENCES commands (id)
);
CREATE TABLE commands (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	name TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	user TEXT, 
	address TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE corporate_actions (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	action_id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	ex_date TEXT NOT NULL, 
	own_change TEXT NOT NULL, 
	foreign_change TEXT NOT NULL, 
	cash TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (action_id)
);
CREATE TABLE cursors (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "cursors" VALUES(1,'2019-01-02T21:16:00.000000+00:00','fills','0');
INSERT INTO "cursors" VALUES(2,'2019-01-03T14:30:00.000000+00:00','fills','3');
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	run TEXT NOT NULL, 
	bar TEXT NOT NULL, 
	strategy TEXT NOT NULL, 
	feed TEXT NOT NULL, 
	inputs TEXT NOT NULL, 
	weights TEXT, 
	outcome TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (run, bar)
);
INSERT INTO "decisions" VALUES(1,'2019-01-03T14:00:00.000000+00:00','replayed','2019-01-02','equal_weight','panel','{"bars": {"AA": {"close": 43.51, "high": 44.11, "low": 43.01, "open": 43.61, "volume": 1000000.0}, "BB": {"close": 107.22, "high": 108.0, "low": 106.72, "open": 107.5, "volume": 1000000.0}, "CC": {"close": 183.49, "high": 185.26, "low": 182.99, "open": 184.76, "volume": 1000000.0}}, "closes": {"AA": "43.51", "BB": "107.22", "CC": "183.49"}, "features": null, "problems": {}, "window": {"bars": 64, "from": "2018-10-01", "sha256": "dda41dc1729227881ecf50120b49353e2e752cde4aa9086923c2602ad4b31fe1"}}','{"AA": 0.3333333333333333, "BB": 0.3333333333333333, "CC": 0.3333333333333333}','orders','{}');
INSERT INTO "decisions" VALUES(2,'2019-01-04T14:00:00.000000+00:00','replayed','2019-01-03','equal_weight','panel','{"bars": {"AA": {"close": 44.24, "high": 44.74, "low": 43.34, "open": 43.84, "volume": 1000000.0}, "BB": {"close": 107.19, "high": 108.63, "low": 106.69, "open": 108.13, "volume": 1000000.0}, "CC": {"close": 182.81, "high": 184.47, "low": 182.31, "open": 183.97, "volume": 1000000.0}}, "closes": {"AA": "44.24", "BB": "107.19", "CC": "182.81"}, "features": null, "problems": {}, "window": {"bars": 65, "from": "2018-10-01", "sha256": "23216ea919edf29a4d741dabb1a462715caf32083ab63b4181ba91b834a5811e"}}',NULL,'hold','{}');
CREATE TABLE equity (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	session TEXT NOT NULL, 
	equity TEXT NOT NULL, 
	cash TEXT NOT NULL, 
	broker_equity TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "equity" VALUES(1,'2019-01-03T14:00:00.000000+00:00','2019-01-02','100000.0','100000.0','100000.0');
INSERT INTO "equity" VALUES(2,'2019-01-04T14:00:00.000000+00:00','2019-01-03','99758.225971386685190','1389.537346779285190','99758.225971386685190');
INSERT INTO "equity" VALUES(3,'2019-01-07T14:00:00.000000+00:00','2019-01-04','99731.509492720175190','1389.537346779285190','99731.509492720175190');
CREATE TABLE facts (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "facts" VALUES(1,'account','simulated');
INSERT INTO "facts" VALUES(2,'run','replayed');
CREATE TABLE fills (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	order_id INTEGER NOT NULL, 
	execution_id TEXT NOT NULL, 
	quantity TEXT NOT NULL, 
	cumulative_quantity TEXT NOT NULL, 
	price TEXT NOT NULL, 
	fee TEXT NOT NULL, 
	time TEXT NOT NULL, 
	source TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (order_id, cumulative_quantity), 
	FOREIGN KEY(order_id) REFERENCES orders (id)
);
INSERT INTO "fills" VALUES(1,'2019-01-03T14:30:00.000000+00:00',1,'fill-1','750.410055067','750.410055067','43.84','16.44898840706864','2019-01-03T14:30:00.000000+00:00','stream');
INSERT INTO "fills" VALUES(2,'2019-01-03T14:30:00.000000+00:00',2,'fill-2','304.517268195','304.517268195','108.13','16.463726104962675','2019-01-03T14:30:00.000000+00:00','stream');
INSERT INTO "fills" VALUES(3,'2019-01-03T14:30:00.000000+00:00',3,'fill-3','177.940713367','177.940713367','183.97','16.367876519063495','2019-01-03T14:30:00.000000+00:00','stream');
CREATE TABLE foreign_fills (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	execution_id TEXT NOT NULL, 
	broker_order_id TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	quantity TEXT NOT NULL, 
	price TEXT NOT NULL, 
	time TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (execution_id)
);
CREATE TABLE foreign_positions (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	quantity TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE intent_events (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	intent_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(intent_id) REFERENCES intents (id)
);
INSERT INTO "intent_events" VALUES(1,'2019-01-03T14:00:00.000000+00:00',1,'open','');
INSERT INTO "intent_events" VALUES(2,'2019-01-03T14:00:00.000000+00:00',2,'open','');
INSERT INTO "intent_events" VALUES(3,'2019-01-03T14:00:00.000000+00:00',3,'open','');
INSERT INTO "intent_events" VALUES(4,'2019-01-03T14:30:00.000000+00:00',1,'done','');
INSERT INTO "intent_events" VALUES(5,'2019-01-03T14:30:00.000000+00:00',2,'done','');
INSERT INTO "intent_events" VALUES(6,'2019-01-03T14:30:00.000000+00:00',3,'done','');
CREATE TABLE intents (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	run TEXT NOT NULL, 
	bar TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	side TEXT NOT NULL, 
	quantity TEXT NOT NULL, 
	time_in_force TEXT NOT NULL, 
	type TEXT NOT NULL, 
	limit_price TEXT, 
	reference_price TEXT NOT NULL, 
	opens TEXT NOT NULL, 
	deadline TEXT NOT NULL, 
	ends TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (run, bar, symbol, side)
);
INSERT INTO "intents" VALUES(1,'2019-01-03T14:00:00.000000+00:00','replayed','2019-01-02','AA','buy','750.410055067','day','limit','47.86','43.51','2019-01-03T14:00:00.000000+00:00','2019-01-03T14:27:30.000000+00:00','2019-01-03T21:00:00.000000+00:00');
INSERT INTO "intents" VALUES(2,'2019-01-03T14:00:00.000000+00:00','replayed','2019-01-02','BB','buy','304.517268195','day','limit','117.94','107.22','2019-01-03T14:00:00.000000+00:00','2019-01-03T14:27:30.000000+00:00','2019-01-03T21:00:00.000000+00:00');
INSERT INTO "intents" VALUES(3,'2019-01-03T14:00:00.000000+00:00','replayed','2019-01-02','CC','buy','177.940713367','day','limit','201.84','183.49','2019-01-03T14:00:00.000000+00:00','2019-01-03T14:27:30.000000+00:00','2019-01-03T21:00:00.000000+00:00');
CREATE TABLE leases (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE looks (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	feed TEXT NOT NULL, 
	adjustment TEXT NOT NULL, 
	start TEXT NOT NULL, 
	"end" TEXT NOT NULL, 
	symbols INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "looks" VALUES(1,'2019-01-03T14:00:00.000000+00:00','panel','all','2018-10-01','2019-01-02',3,'d2a6fd1238839d2bff2340be4e6b98f1c2ea296014e65e9513df6233c772faa5');
INSERT INTO "looks" VALUES(2,'2019-01-03T14:00:00.000000+00:00','panel','raw','2018-12-19','2019-01-02',3,'507c451a8144b92ef7ce45e0efd567ff8a7e6689799f0b9496de7cd005e12dbe');
INSERT INTO "looks" VALUES(3,'2019-01-04T14:00:00.000000+00:00','panel','all','2018-10-01','2019-01-03',3,'9199bd334987a5167d453b5b2410ac5c1d8c3030a82cb6f8e38ec5b43d4c3509');
INSERT INTO "looks" VALUES(4,'2019-01-04T14:00:00.000000+00:00','panel','raw','2018-12-20','2019-01-03',3,'8310798808970e24105b3626fd505ab9aea0b0be0e595e6720aa26e69ee1f5e0');
INSERT INTO "looks" VALUES(5,'2019-01-07T14:00:00.000000+00:00','panel','all','2018-10-01','2019-01-04',3,'8559aa059a12adfa87ec09197e7af7282e1f20d7bd860e347d15c56b4d711930');
INSERT INTO "looks" VALUES(6,'2019-01-07T14:00:00.000000+00:00','panel','raw','2018-12-21','2019-01-04',3,'d0af20800ca5716309caf68a53b099163af84b2fce45cea528f9b1cac8a87a95');
CREATE TABLE order_events (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	order_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	broker_id TEXT NOT NULL, 
	status TEXT NOT NULL, 
	filled TEXT NOT NULL, 
	value TEXT NOT NULL, 
	cancel_requested INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(order_id) REFERENCES orders (id)
);
INSERT INTO "order_events" VALUES(1,'2019-01-03T14:00:00.000000+00:00',1,'sending','','unknown','0','0',0,'plan','');
INSERT INTO "order_events" VALUES(2,'2019-01-03T14:00:00.000000+00:00',1,'working','sim-1','new','0','0',0,'post','');
INSERT INTO "order_events" VALUES(3,'2019-01-03T14:00:00.000000+00:00',2,'sending','','unknown','0','0',0,'plan','');
INSERT INTO "order_events" VALUES(4,'2019-01-03T14:00:00.000000+00:00',2,'working','sim-2','new','0','0',0,'post','');
INSERT INTO "order_events" VALUES(5,'2019-01-03T14:00:00.000000+00:00',3,'sending','','unknown','0','0',0,'plan','');
INSERT INTO "order_events" VALUES(6,'2019-01-03T14:00:00.000000+00:00',3,'working','sim-3','new','0','0',0,'post','');
INSERT INTO "order_events" VALUES(7,'2019-01-03T14:30:00.000000+00:00',1,'ended','sim-1','filled','750.410055067','32897.97681413728',0,'stream','fill');
INSERT INTO "order_events" VALUES(8,'2019-01-03T14:30:00.000000+00:00',2,'ended','sim-2','filled','304.517268195','32927.45220992535',0,'stream','fill');
INSERT INTO "order_events" VALUES(9,'2019-01-03T14:30:00.000000+00:00',3,'ended','sim-3','filled','177.940713367','32735.75303812699',0,'stream','fill');
CREATE TABLE orders (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	client_order_id TEXT NOT NULL, 
	intent_id INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	quantity TEXT NOT NULL, 
	time_in_force TEXT NOT NULL, 
	type TEXT NOT NULL, 
	limit_price TEXT, 
	replaces TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (client_order_id), 
	FOREIGN KEY(intent_id) REFERENCES intents (id)
);
INSERT INTO "orders" VALUES(1,'2019-01-03T14:00:00.000000+00:00','fp1.replayed.20190102.AA.b0',1,0,'750.410055067','day','limit','47.86',NULL);
INSERT INTO "orders" VALUES(2,'2019-01-03T14:00:00.000000+00:00','fp1.replayed.20190102.BB.b0',2,0,'304.517268195','day','limit','117.94',NULL);
INSERT INTO "orders" VALUES(3,'2019-01-03T14:00:00.000000+00:00','fp1.replayed.20190102.CC.b0',3,0,'177.940713367','day','limit','201.84',NULL);
CREATE TABLE risk_states (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE settings (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	content TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "settings" VALUES(1,'2019-01-02T21:16:00.000000+00:00','{"broker": {"clock": "", "cost_bps": 5.0, "data_url": "", "feed": "iex", "kind": "simulated", "panel": "opened", "url": ""}, "capital": 100000.0, "data": {"max_jump": 0.4, "window": 600}, "journal": "/srv/paper/v4.sqlite", "name": "replayed", "orders": {"cash_buffer": 0.02, "collar": 0.1, "fractional": true, "funding": "together", "min_value": 1.0}, "outside": {"heartbeat": "", "port": 0, "webhook": ""}, "risk": {"daily_loss": 0.05, "drawdown": 0.25, "max_gross": 1.0, "max_net": 1.0, "max_order": 0.5, "max_position": 0.4, "max_turnover": 2.0}, "run": "", "schedule": {"lead_minutes": 30.0, "mode": "open"}, "strategy": "equal_weight", "symbols": ["AA", "BB", "CC"], "timing": {"drift": 60.0, "lookup": 30.0, "poll": 5.0, "shutdown": 30.0, "stale_stream": 90.0}}');
CREATE TABLE strategies (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	name TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "strategies" VALUES(1,'2019-01-03T14:00:00.000000+00:00','equal_weight','7ec116b407baa9b21d63152b9449d3e445d35bbe0a31997b5e85072d1f557400','equal_weight');
CREATE TABLE symbol_halts (
	id INTEGER NOT NULL, 
	at TEXT NOT NULL, 
	symbol TEXT NOT NULL, 
	halted INTEGER, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_closes_symbol ON closes (symbol);
CREATE INDEX ix_order_events_order_id ON order_events (order_id);
CREATE TRIGGER facts_no_update BEFORE UPDATE ON facts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER facts_no_delete BEFORE DELETE ON facts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER leases_no_update BEFORE UPDATE ON leases BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER leases_no_delete BEFORE DELETE ON leases BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER decisions_no_update BEFORE UPDATE ON decisions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER decisions_no_delete BEFORE DELETE ON decisions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER intents_no_update BEFORE UPDATE ON intents BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER intents_no_delete BEFORE DELETE ON intents BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER intent_events_no_update BEFORE UPDATE ON intent_events BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER intent_events_no_delete BEFORE DELETE ON intent_events BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER orders_no_update BEFORE UPDATE ON orders BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER orders_no_delete BEFORE DELETE ON orders BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER order_events_no_update BEFORE UPDATE ON order_events BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER order_events_no_delete BEFORE DELETE ON order_events BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER fills_no_update BEFORE UPDATE ON fills BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER fills_no_delete BEFORE DELETE ON fills BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER foreign_fills_no_update BEFORE UPDATE ON foreign_fills BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER foreign_fills_no_delete BEFORE DELETE ON foreign_fills BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER foreign_positions_no_update BEFORE UPDATE ON foreign_positions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER foreign_positions_no_delete BEFORE DELETE ON foreign_positions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER corporate_actions_no_update BEFORE UPDATE ON corporate_actions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER corporate_actions_no_delete BEFORE DELETE ON corporate_actions BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER cash_marks_no_update BEFORE UPDATE ON cash_marks BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER cash_marks_no_delete BEFORE DELETE ON cash_marks BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER cursors_no_update BEFORE UPDATE ON cursors BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER cursors_no_delete BEFORE DELETE ON cursors BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER equity_no_update BEFORE UPDATE ON equity BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER equity_no_delete BEFORE DELETE ON equity BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER closes_no_update BEFORE UPDATE ON closes BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER closes_no_delete BEFORE DELETE ON closes BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER looks_no_update BEFORE UPDATE ON looks BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER looks_no_delete BEFORE DELETE ON looks BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER risk_states_no_update BEFORE UPDATE ON risk_states BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER risk_states_no_delete BEFORE DELETE ON risk_states BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER symbol_halts_no_update BEFORE UPDATE ON symbol_halts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER symbol_halts_no_delete BEFORE DELETE ON symbol_halts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER commands_no_update BEFORE UPDATE ON commands BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER commands_no_delete BEFORE DELETE ON commands BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER command_results_no_update BEFORE UPDATE ON command_results BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER command_results_no_delete BEFORE DELETE ON command_results BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER alerts_no_update BEFORE UPDATE ON alerts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER alerts_no_delete BEFORE DELETE ON alerts BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER strategies_no_update BEFORE UPDATE ON strategies BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER strategies_no_delete BEFORE DELETE ON strategies BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER settings_no_update BEFORE UPDATE ON settings BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
CREATE TRIGGER settings_no_delete BEFORE DELETE ON settings BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END;
COMMIT;
PRAGMA user_version = 4;
